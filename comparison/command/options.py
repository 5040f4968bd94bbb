"""The options of ``structured-init compare`` and ``structured-init report``: read without importing what they run."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import NoReturn

from comparison.run.time_limit import parse_duration
from structured_init.errors import StructuredInitError

SUCCESS = "count the runs that reach X of the metric, such as 0.95, where results are all or nothing"


class _Parser(argparse.ArgumentParser):
    """Raises in place of printing its usage."""

    def parse_known_args(self, args: Sequence[str], namespace: None = None) -> tuple[argparse.Namespace, list[str]]:
        """Take ``--seeds -1,0`` as one option, whose value is then refused by name; argparse sees two."""
        joined: list[str] = []
        for argument in args:
            if joined[-1:] == ["--seeds"] and re.match(r"-\d", argument):
                argument = f"{joined.pop()}={argument}"
            joined.append(argument)
        return super().parse_known_args(joined, namespace)

    def error(self, message: str) -> NoReturn:
        raise StructuredInitError(message)


def compare_parser() -> argparse.ArgumentParser:
    """Return the parser of ``compare``."""
    parser = _Parser(
        prog="structured-init compare",
        description="Train an experiment from several initializations with the same seeds; report paired differences.",
        epilog="Any further --key value goes to every run. The same command again goes on where it was stopped.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )
    add = parser.add_argument
    add("-c", "--config", action="append", required=True, metavar="EXPERIMENT", help="a configuration; several layer")
    add("--inits", required=True, metavar="A,B,…", help="such as default,wide=impulse{kernel_size=5},mine.yaml")
    add("--seeds", metavar="0,1,2", help="or 0-4 (default: 0,1,2; with --margin or --precision 0-4, the first look)")
    decide = "better, worse, or equivalent within this: add seeds until every difference is, such as 0.5 points"
    add("--margin", type=_positive_number, metavar="M", help=decide)
    size = "add seeds until every difference is known to ± this, such as 0.5 points"
    add("--precision", type=_positive_number, metavar="H", help=size)
    add("--max-seeds", type=_positive, metavar="N", help="that --margin or --precision may take (default: 40)")
    total = "training time that --margin or --precision may take, of all runs together, such as 3h"
    add("--budget", type=parse_duration, metavar="T", help=total)
    add("--output", required=True, metavar="DIR", help="folder of the comparison")
    add("--baseline", metavar="INIT", help="what differences refer to (default: 'default', else the first)")
    add("--control", metavar="INIT", help="same-positions control, of all or as INIT=CONTROL,… (default: found)")
    add(
        "--controls",
        choices=("auto", "none"),
        default="none",
        help="auto: add the same-positions and the scrambled arm of every structured one (default: none)",
    )
    add("--grid", action="append", default=[], metavar="KEY=a,b", help="repeat all of it at each value; several cross")
    add("--learning-rates", default="", metavar="a,b", help="choose one per initialization on the validation split")
    add("--metric", metavar="NAME", help="such as test/accuracy (default: the task's)")
    add("--mode", choices=("max", "min"), help="whether more or less of it is better (default: the task's)")
    add("--success", type=_number, metavar="X", help=SUCCESS)
    _add_training(parser)
    add("--no-open", action="store_true", help="do not show the report in a browser")
    return parser


def find_parser() -> argparse.ArgumentParser:
    """Return the parser of ``find``."""
    parser = _Parser(
        prog="structured-init find",
        description="Race initializations on the validation split; show the winner on fresh seeds and the test split.",
        epilog="Any further --key value goes to every run. The same command again goes on where it was stopped.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )
    add = parser.add_argument
    add("-c", "--config", action="append", required=True, metavar="EXPERIMENT", help="a configuration; several layer")
    add("--among", default="auto", metavar="A,B,…", help="as --inits of compare (default: auto, all that fit)")
    add("--output", required=True, metavar="DIR", help="folder of the search")
    total = "training time of all runs together, half of it for the race, such as 2h (default: no end)"
    add("--budget", type=parse_duration, default=math.inf, metavar="T", help=total)
    add("--baseline", default="default", metavar="INIT", help="what you have (default: default)")
    add("--learning-rates", default="", metavar="a,b", help="race every candidate and the default at each")
    add("--margin", type=_positive_number, default=0.5, metavar="M", help="of the evidence (default: 0.5)")
    add("--max-seeds", type=_positive, default=40, metavar="N", help="of the evidence (default: 40)")
    parts = "parts of the training at which candidates are dropped (default: 0.2,0.5,1); 1 trains each to the end"
    add("--shares", type=_shares, default="0.2,0.5,1", metavar="a,1", help=parts)
    add("--metric", metavar="NAME", help="such as test/accuracy (default: the task's)")
    add("--mode", choices=("max", "min"), help="whether more or less of it is better (default: the task's)")
    _add_training(parser)
    return parser


def report_parser() -> argparse.ArgumentParser:
    """Return the parser of ``report``."""
    parser = _Parser(
        prog="structured-init report",
        description="Write the report of a comparison, finished or not, or of runs made elsewhere: a table with the "
        "columns arm, seed and a metric (and step), TensorBoard's event files, exports of Weights & Biases or MLflow.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="PATH", help="folder of the comparison; table.csv, or what else runs were logged in")
    add("--baseline", metavar="INIT", help="what differences refer to (default: the comparison's)")
    add("--metric", metavar="NAME", help="of runs made elsewhere, where they have several")
    add("--mode", choices=("max", "min"), help="whether more or less of it is better (default: by its name)")
    add("--runs", metavar="PATTERN", help="how runs made elsewhere are named, such as {arm}/seed_{seed}")
    add("--control", metavar="INIT", help="same-positions control, of all or as INIT=CONTROL,… (default: found)")
    add("--success", type=_number, metavar="X", help=SUCCESS)
    add("--output", metavar="FILE", help="the page (default: DIR/report.html, table_report/report.html)")
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options of where runs are trained and how long."""
    add = parser.add_argument
    add("--parallel", type=_positive, default=1, metavar="N", help="runs at a time on this machine (default: 1)")
    add("--threads", type=_positive, default=1, metavar="N", help="per run, part of its identity (default: 1)")
    add("--launcher", choices=("local", "ray"), default="local", help="where runs are trained (default: local)")
    add("--ray-address", metavar="A", help="of a Ray cluster; without it one is started here")
    add("--cpus-per-run", type=_positive_number, default=1, metavar="N", help="that Ray reserves (default: 1)")
    add("--gpus-per-run", type=_number, default=0, metavar="N", help="of each run (default: 0)")
    limit = "such as 55m, 2h or 01:30:00: stop in time, with exit code 75; the same command goes on"
    add("--time-limit", type=parse_duration, default=math.inf, metavar="T", help=limit)


def _shares(text: str) -> str:
    """Return one to three growing numbers that end in 1, as they are given."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not 1 <= len(shares) <= 3 or shares != sorted({*shares}) or shares[0] <= 0 or shares[-1] != 1:
        raise argparse.ArgumentTypeError(f"expected growing parts that end in 1, such as 0.2,0.5,1, got '{text}'")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got '{text}'")
    return int(text)


def _number(text: str) -> float:
    """Return a number from 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0, got '{text}'")
    return number


def _positive_number(text: str) -> float:
    if not _number(text):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return _number(text)
