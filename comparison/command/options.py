"""The options of ``structured-init compare`` and ``structured-init report``: read without importing what they run."""

from __future__ import annotations

import argparse
import math
import re
from typing import NoReturn

from comparison.contrasts.contrasts import LOOKS
from structured_init.util.arguments import parse_duration
from structured_init.util.errors import StructuredInitError, nearest

CONTROL = "control, for all arms or as INIT=CONTROL,INIT=OTHER,…, beside those of the comparison's plan"
RATE_KEY = "a module of yours takes them as lr, learning_rate or optimizer"
SUCCESS = "count the runs whose metric reaches X, such as 0.95"


class _Parser(argparse.ArgumentParser):
    """Raises in place of printing its usage."""

    def format_help(self) -> str:
        """Return the help, which ends with the address of the documentation."""
        from lightning_modules.cli.commands import documentation  # a report itself needs nothing of that room

        return f"{super().format_help()}\n{documentation()}\n"

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            message = f"unknown option '{unknown[1]}': {nearest(unknown[1], self._option_string_actions)}"
        raise StructuredInitError(message)


def compare_parser() -> argparse.ArgumentParser:
    """Return the parser of ``compare``."""
    about = "Train an experiment from several initializations with the same seeds; report paired differences."
    parser = _parser_of_training("compare", about)
    add = parser.add_argument
    inits = "initializations, such as default,wide=impulse{kernel_size=5},mine.yaml"
    add("--inits", required=True, metavar="A,B,…", help=inits)
    seeds = "or 0-4 (default: 0,1,2; with --margin or --precision: 0-4 at first)"
    add("--seeds", type=parse_seeds, metavar="0,1,2", help=seeds)
    one = parser.add_mutually_exclusive_group().add_argument
    decide = "add seeds until every difference is better, worse, or equivalent within M, such as 0.5 (points)"
    one("--margin", type=_positive_number, metavar="M", help=decide)
    size = "add seeds until every difference is known to ± H, such as 0.5 (points)"
    one("--precision", type=_positive_number, metavar="H", help=size)
    most = "most seeds that --margin or --precision may use: 5, 10, 20 or 40 (default: 40)"
    add("--max-seeds", type=int, choices=LOOKS, metavar="N", help=most)
    add("--output", metavar="DIR", help="folder of the comparison (default: runs/EXPERIMENT)")
    add("--baseline", metavar="INIT", help="arm that all others are compared to (default: 'default', else the first)")
    add("--control", metavar="INIT", help=CONTROL)
    added = (
        "scrambled: add to each structured arm its weights scrambled; auto: also its positions, and, where possible,"
        " its scrambled weights with attention as sharp (default: none)"
    )
    add("--controls", choices=("auto", "scrambled", "none"), default="none", help=added)
    places = "compare at each value, such as optim=adamw,muon; several options are crossed"
    add("--grid", action="append", default=[], metavar="KEY=a,b", help=places)
    rates = f"try these, and choose the best of each arm at each place of the grid on the validation split; {RATE_KEY}"
    add("--learning-rates", type=parse_rates, default=[], metavar="a,b", help=rates)
    add("--metric", metavar="NAME", help="such as test/accuracy (default: the task's)")
    _add_direction(parser, "the task's, else by its name")
    add("--success", type=_number, metavar="X", help=SUCCESS)
    _add_training(parser)
    add("--no-open", action="store_true", help="do not show the report in a browser")
    return parser


def find_parser() -> argparse.ArgumentParser:
    """Return the parser of ``find``."""
    about = "Race initializations on the validation split; show the winner on fresh seeds and the test split."
    parser = _parser_of_training("find", about)
    add = parser.add_argument
    among = "candidates, as --inits of compare (default: auto, all that fit the network)"
    add("--among", default="auto", metavar="A,B,…", help=among)
    add("--output", metavar="DIR", help="folder of the search (default: runs/EXPERIMENT_find)")
    seeds = "of the race, one after another (default: 0-5); after each, the worse half leaves, until three are left"
    add("--seeds", type=parse_seeds, default="0-5", metavar="0,1,2", help=seeds)
    add("--baseline", default="default", metavar="INIT", help="the initialization you use now (default: default)")
    final = "of the final comparison (default: "
    add("--margin", type=_positive_number, default=0.5, metavar="M", help=f"--margin {final}0.5)")
    add("--max-seeds", type=int, choices=LOOKS, default=40, metavar="N", help=f"--max-seeds {final}40)")
    shown = "controls of the final comparison, as --controls of compare (default: scrambled; none leaves it out)"
    add("--controls", choices=("auto", "scrambled", "none"), default="scrambled", help=shown)
    add("--metric", metavar="NAME", help="such as test/accuracy (default: the task's)")
    _add_direction(parser, "the task's, else by its name")
    _add_training(parser)
    return parser


def report_parser() -> argparse.ArgumentParser:
    """Return the parser of ``report``."""
    parser = _Parser(
        prog="structured-init report",
        description="Write the report of a comparison, finished or not, or of runs made elsewhere: a table with the "
        "columns arm, seed and a metric (and step), folders of Lightning's CSVLogger, exports of Weights & Biases.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="PATH", help="folder of a comparison, or a table (.csv) or log of runs made elsewhere")
    add("--baseline", metavar="INIT", help="arm that all others are compared to (default: the comparison's)")
    _add_reading(parser, "the comparison's, else by its name")
    add("--success", type=_number, metavar="X", help=SUCCESS)
    add(
        "--output",
        metavar="FILE",
        help="folder of the page, its tables and its figures, or the page in it, FOLDER/report.html "
        "(default: the folder of the comparison; of runs.csv runs_report)",
    )
    return parser


def judge_parser() -> argparse.ArgumentParser:
    """Return the parser of ``judge``."""
    parser = _Parser(
        prog="structured-init judge",
        description="Judge runs of any program against a baseline: keep (exit status 0), discard (1), more seeds (75), "
        "or cannot be judged (2). Valid however often it is asked: a file beside the runs records what was seen.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("results", metavar="RESULTS", help="a table (.csv), a log folder or a comparison, as report reads them")
    add("--baseline", metavar="ARM", help="what the others would replace (default: default, baseline or the first)")
    margin = "a smaller difference does not matter: points for an accuracy (default: 0.5), else the metric's unit"
    add("--margin", type=_positive_number, metavar="M", help=margin)
    most = "seeds you would train at most: 5, 10, 20 or 40 (default: 40)"
    add("--max-seeds", type=int, choices=LOOKS, metavar="N", help=most)
    proposals = (
        "arms that you will judge in total (default: as many as at the first call); later ones are judged more strictly"
    )
    add("--proposals", type=_positive, metavar="N", help=proposals)
    _add_reading(parser, "by its name")
    once = parser.add_mutually_exclusive_group().add_argument
    once("--target", type=_finite, metavar="X", help="one look: is the mean of each arm better than X, at p < 0.01?")
    welch = "one look at arms without common seeds: is the mean better than the baseline's, at p < 0.01?"
    once("--unpaired", action="store_true", help=welch)
    add("--dry-run", action="store_true", help="answer without remembering")
    add("--json", action="store_true", help="print the answer as JSON")
    return parser


def _parser_of_training(command: str, about: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"structured-init {command}",
        description=about,
        epilog="Any further --key value goes to every run. Run the same command again to continue a stopped one.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )
    named = {"action": "append", "required": True, "metavar": "EXPERIMENT"}
    parser.add_argument("-c", "--config", help="a configuration; later ones override earlier ones", **named)
    return parser


def _add_reading(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options of how runs are read that were made elsewhere, and which of them are controls."""
    add = parser.add_argument
    add("--metric", metavar="NAME", help="which metric, if there are several, or another of a comparison")
    _add_direction(parser, default)
    add("--arm", metavar="COLUMN", help="the column of a table, or the setting of Lightning's logs, that names the arm")
    seed = "the column, or the setting of logged runs, that is the seed (default: seed, seed_everything or the like)"
    add("--seed", metavar="COLUMN", help=seed)
    add("--control", metavar="INIT", help=CONTROL)


def _add_direction(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options of which direction of the metric is better."""
    add = parser.add_mutually_exclusive_group().add_argument
    ways = {"dest": "mode", "action": "store_const"}
    add("--less-is-better", const="min", help=f"a lower value of the metric is better (default: {default})", **ways)
    add("--more-is-better", const="max", help="a higher value of the metric is better", **ways)


def _add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options of where runs are trained and how long."""
    add = parser.add_argument
    add("--parallel", type=_positive, default=1, metavar="N", help="runs at a time on this machine (default: 1)")
    threads = "CPU threads per run; another number changes the last digits (default: 1)"
    add("--threads", type=_positive, default=1, metavar="N", help=threads)
    add("--launcher", choices=("local", "ray"), default="local", help="where runs are trained (default: local)")
    add("--ray-address", metavar="A", help="address of a Ray cluster (default: start one here)")
    cpus = "CPUs that Ray reserves per run (default: 1)"
    add("--cpus-per-run", type=_positive_number, default=1, metavar="N", help=cpus)
    add("--gpus-per-run", type=_number, default=0, metavar="N", help="GPUs of each run (default: 0)")
    limit = "stop before this time, such as 55m, 2h or 01:30:00, with exit code 75; the same command continues"
    add("--time-limit", type=parse_duration, default=math.inf, metavar="T", help=limit)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``0,1,2`` or ``0-4``, or a mixture of both, in their order."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if not found:
            raise argparse.ArgumentTypeError(f"cannot read the seeds '{text}': write 0,1,2 or 0-4")
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)
    if not seeds or len({*seeds}) < len(seeds):
        raise argparse.ArgumentTypeError(f"the seeds '{text}' are empty, or name one twice: write 0,1,2 or 0-4")
    return seeds


def parse_rates(text: str) -> list[float]:
    """Return learning rates."""
    rates = [_positive_number(part) for part in text.split(",")]
    if len({*rates}) < len(rates):
        raise argparse.ArgumentTypeError(f"the learning rates '{text}' name one twice")
    return rates


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got '{text}'")
    return int(text)


def _finite(text: str) -> float:
    if not re.fullmatch(r"(?i)[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text) or math.isinf(float(text)):
        raise argparse.ArgumentTypeError(f"expected a number, got '{text}'")
    return float(text)


def _number(text: str) -> float:
    """Return a number from 0."""
    if _finite(text) < 0:
        raise argparse.ArgumentTypeError(f"expected a number from 0, got '{text}'")
    return float(text)


def _positive_number(text: str) -> float:
    if _finite(text) <= 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return float(text)
