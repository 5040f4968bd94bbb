"""``structured-init list``: every initialization in one line, what it gained here, and whether it fits a network."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from lightning_modules.cli.commands import documentation
from structured_init.presets import SHIPPED
from structured_init.util.errors import StructuredInitError, nearest

GAINS = SHIPPED / "gains.yaml"
# What a network needs, by what the file of an initialization says of networks; the first that is found counts.
NEEDS = {
    "depthwise": "depthwise convolution",
    "conv": "convolution whose windows overlap",
    "Mamba": "state-space layer",
    "transformer|language model|attention": "attention",
}
GAINS_AS = {"gain": "Gained here: ", "controls": "Beyond its controls: ", "today": "Over today's baseline: "}
NAMES = 24  # columns of the names
NUMBERS = 19  # and of the numbers
LEGEND = (
    "A number is the difference to the default: over today's baseline where that was run, else over the experiment's "
    "own; of perplexity, less is better. With ? it was not shown. structured-init list NAME says all of it."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StructuredInitError(message)


def list_command(args: Sequence[str]) -> None:
    """Print what the command line after ``list`` asks for; refuse an unknown network or initialization."""
    parser = _Parser(
        prog="structured-init list",
        description="List the initializations: what each is, for which networks, and what it gained here.",
        epilog=documentation(),
        allow_abbrev=False,
    )
    network = "say which fit: a configuration (vit_digits, mine.yaml), a model of timm or transformers, a config.json"
    parser.add_argument("name", nargs="?", help="say all that is known of this initialization")
    parser.add_argument("--for", dest="network", metavar="MODEL", help=network)
    parser.add_argument("--experiments", action="store_true", help="list the shipped experiments instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    rows = configurations("experiment" if options.experiments else "init")
    if options.name is not None:
        names = [row["name"] for row in rows]
        if options.name not in names:
            raise StructuredInitError(f"there is no initialization '{options.name}': {nearest(options.name, names)}")
        rows = [rows[names.index(options.name)]]
    if options.network is not None:
        print(f"building {options.network} and looking at one pass through it …", file=sys.stderr)
        why = fitting(options.network, rows)
        rows = [{"name": row["name"], "fits": not why[row["name"]], "why": why[row["name"]], **row} for row in rows]
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        print(table(rows) if options.name is None else paragraph(rows[0]))


def configurations(folder: str) -> list[dict[str, Any]]:
    """Return the shipped configurations of a folder by what they are for: name, what each is, and what it gained here.

    All but the last stand at the top of its file. Gains are those of the page of claims, which writes them to
    ``configs/gains.yaml``; none where nothing was measured.
    """
    gains = yaml.safe_load(GAINS.read_text(encoding="utf-8"))
    rows = []
    for file in sorted((SHIPPED / folder).glob("*.yaml")):
        what, more, networks = _comment(file)
        known = gains.get(file.stem, dict.fromkeys(GAINS_AS))
        rows.append({"name": file.stem, "what": what, "more": more, "networks": networks, **known})
    return sorted(rows, key=lambda row: row["networks"])


def _comment(file: Path) -> tuple[str, str, str]:
    """Return the first sentence at the top of a file, what follows it, and the networks that it is for."""
    lines = [line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    text = " ".join(line for line in lines if not re.match(r"(For|Card|Control of): ", line))
    networks = [line.removeprefix("For: ") for line in lines if line.startswith("For: ")]
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", text)
    return first, " ".join(others), ", ".join(networks)


def fitting(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return why each initialization does not fit a network, by its name; an empty text where it does.

    The network is built as its configuration says, with fresh weights, and one pass through it shows which layers
    there are. ``show MODEL INIT --plan`` says what exactly would be done. A network that is not there is refused.
    """
    from lightning_modules.cli.configurations import expand
    from lightning_modules.cli.lightning_cli import BuildOnly
    from lightning_modules.cli.named_model import by_position
    from lightning_modules.cli.samples import layers_of, subject

    built = BuildOnly(expand(by_position(["show", name])))
    has = layers_of(*subject(built.model, built.datamodule))
    reasons = {}
    for row in rows:
        need = next((layer for pattern, layer in NEEDS.items() if re.search(pattern, row["networks"])), "")
        reasons[row["name"]] = ""
        if need and need not in has:
            reasons[row["name"]] = f"found no {need}"
        elif ("vision" in row["networks"] and "words" in has) or ("language" in row["networks"] and "images" in has):
            reasons[row["name"]] = f"it is made for {row['networks']}"
    return reasons


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each row, as wide as the terminal, by what it is for; at the end what does not fit."""
    width = shutil.get_terminal_size((100, 24)).columns
    lines: list[str] = []
    group = ""
    others: dict[str, list[str]] = {}
    for row in rows:
        if row.get("why"):
            others.setdefault(row["why"], []).append(row["name"])
            continue
        if row["networks"] != group:
            group = row["networks"]
            lines += ["", f"for {group}:"]
        head = f"{row['name']:{NAMES}}" + (f"{best(row):{NUMBERS}}" if group else "")
        lines.append(head + textwrap.shorten(row["what"], width - len(head), placeholder=" …"))
    notes = [f"these do not fit, {why}: {', '.join(names)}" for why, names in others.items()]
    for note in [*notes, LEGEND] if group else []:
        lines += ["", textwrap.fill(note, width, subsequent_indent="  ", break_on_hyphens=False)]
    return "\n".join(lines).lstrip("\n")


def best(row: dict[str, Any]) -> str:
    """Return the best result of an initialization, with its sign and its unit: over today's baseline if that was run.

    It ends in a question mark where the difference was not shown; it is empty where nothing was measured.
    """
    for text in (row["today"], row["gain"]):
        statements = re.split(r"; (?=shown|not shown|refuted)", text or "")
        for statement in sorted(statements, key=lambda each: "not shown" in each):
            found = re.search(r"([+−][\d.]+) ± [\d.]+ ([a-z ]+)|(\d+ of \d+) against", statement)
            if found:
                number = found[3] or f"{found[1]} {found[2].strip()}"
                return number + ("?" if "not shown" in statement else "")
    return ""


def paragraph(row: dict[str, Any]) -> str:
    """Return all that is known of an initialization or an experiment, as wide as the terminal."""
    parts = [f"{row['what']} {row['more']}".strip()]
    if row["networks"]:
        parts.append(f"For {row['networks']}.")
    for key, title in GAINS_AS.items():
        if row[key] not in (None, "–"):
            parts.append(f"{title}{row[key].removesuffix('.')}.")
    return textwrap.fill(" ".join(parts), shutil.get_terminal_size((100, 24)).columns, break_on_hyphens=False)
