"""``structured-init list``: every initialization in one line, what it gained here, and whether it fits a network."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lightning_modules.cli.commands import documentation
from lightning_modules.cli.configurations import config_names, initializations
from structured_init.presets import SHIPPED, preset_names, split_overrides
from structured_init.util.errors import StructuredInitError, nearest

LAYERS = 2  # of a model by name: what fits two layers fits all


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (\S+)", message):
            near = nearest(unknown[1], self._option_string_actions)
            message = f"'{unknown[1]}' is no option of list: {near} (--for gives a network)"
        raise StructuredInitError(message)


def experiments() -> dict[str, str]:
    """Return the first sentence of every shipped experiment, by the name that ``-c`` takes."""
    sentences = {}
    for file in sorted((SHIPPED / "experiment").glob("*.yaml")):
        comment = " ".join(re.findall(r"^# (.*)", file.read_text(encoding="utf-8"), re.MULTILINE))
        sentences[file.stem] = re.split(r"(?<=\.) ", comment)[0]
    return sentences


def list_command(args: Sequence[str]) -> None:
    """Print the table that the command line after ``list`` asks for; refuse an unknown network or option."""
    parser = _Parser(
        prog="structured-init list",
        description="List the initializations: what each is, for which networks, and what it gained here.",
        epilog=documentation(),
        allow_abbrev=False,
    )
    network = (
        "say which fit: a configuration (vit_digits, mine.yaml), a model of timm or transformers, or a config.json"
    )
    parser.add_argument("--for", "-c", "--model", dest="network", metavar="MODEL", help=network)
    parser.add_argument("--experiments", action="store_true", help="list the shipped experiments instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    if options.experiments:
        known = experiments()
        print(json.dumps(known, indent=1) if options.json else "\n".join(_paragraphs(known.items())))
        return
    rows = initializations()
    if options.network is not None:
        reasons = fitting(options.network, [row["name"] for row in rows])
        rows = [{"name": row["name"], "fits": not (why := reasons[row["name"]]), "why": why, **row} for row in rows]
    print(json.dumps(rows, indent=1, ensure_ascii=False) if options.json else table(rows))


def fitting(name: str, presets: Sequence[str]) -> dict[str, str]:
    """Return why each initialization does not fit a network, by its name; an empty text where it does.

    Each is planned on the network, which is built here with fresh weights and not changed; no solver takes a step. Of a
    model by name, of timm or transformers, two layers are built, and its samples are those that its host library names.
    A network that is not there is refused.
    """
    from lightning_modules.cli.configurations import expand
    from lightning_modules.cli.lightning_cli import BuildOnly
    from lightning_modules.cli.show import by_position, planned, subject

    stem = split_overrides(name)[0].removeprefix("init/")
    if stem in preset_names() and not Path(name).is_file() and f"experiment/{stem}" not in config_names():
        raise StructuredInitError(f"'{name}' is an initialization: --for takes a network, such as vit_digits")
    words = by_position(["show", name])
    small = [f"--model.layers={LAYERS}"] if words[1].startswith("--model") else []
    built = BuildOnly(expand([*words, *small]))
    model, _, samples = subject(built.model, built.datamodule, 0, 0)
    return planned(model, presets, samples)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a paragraph for each row, as wide as the terminal: all, or what fits a network and then what does not."""
    if "fits" not in rows[0]:
        groups = itertools.groupby(rows, lambda row: row["kind"])
        parts = ([f"{group}:", *_paragraphs((row["name"], _text(row)) for row in own)] for group, own in groups)
        return "\n\n".join(map("\n".join, parts))
    fit = _paragraphs((row["name"], _text(row)) for row in rows if row["fits"])
    reasons: dict[str, list[str]] = {}  # without the class that says so, and what the model has → names
    for row in rows:
        if not row["fits"]:
            reasons.setdefault(re.sub(r"^[A-Z]\w+:? |; the model has.*", "", row["why"]), []).append(row["name"])
    others = [_filled(f"{', '.join(names)}: {why}", "  ") for why, names in reasons.items()]
    parts = [["these fit:", *fit] if fit else ["none fits"], *([["these do not fit:", *others]] if others else [])]
    return "\n\n".join(map("\n".join, parts))


NAMES = 25  # columns of the names


def _paragraphs(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [_filled(f"{name:{NAMES - 1}} {text}", " " * NAMES) for name, text in rows]


def _filled(text: str, indent: str) -> str:
    width = shutil.get_terminal_size((100, 24)).columns
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


GAINS_AS = {"gain": "Gained here: ", "controls": "Due to its structure: ", "today": "Over today's baseline: "}


def _text(row: dict[str, Any]) -> str:
    known = {title: str(row[key]) for key, title in GAINS_AS.items() if row[key] not in (None, "–")}
    gains = (f"{title}{gain.removesuffix('.')}." for title, gain in known.items())
    return " ".join([row["what"], f"For {row['networks']}.", *gains])
