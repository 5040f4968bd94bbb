"""``structured-init list``: every initialization in one line, what it gained here, and whether it fits a network."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
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
    network = "leave out what does not fit a configuration (vit_digits, mine.yaml), or a model of timm or transformers"
    parser.add_argument("name", nargs="?", help="say all that is known of this initialization")
    parser.add_argument("--for", dest="network", metavar="MODEL", help=network)
    parser.add_argument("--experiments", action="store_true", help="list the shipped experiments instead")
    options = parser.parse_args(args)
    rows = configurations("experiment" if options.experiments else "init")
    if options.name is not None:
        known = {row["name"]: row for row in rows}
        if options.name not in known:
            raise StructuredInitError(f"there is no initialization '{options.name}': {nearest(options.name, known)}")
        print(paragraph(known[options.name]))
        return
    has = None
    if options.network is not None:
        print(f"building {options.network} and looking at one pass through it …", file=sys.stderr)
        has = layers_of_named(options.network)
    print(table(rows, has))


def configurations(folder: str) -> list[dict[str, Any]]:
    """Return the shipped configurations of a folder by what they are for: name, what each is, and what it gained here.

    All but the last stand at the top of its file. Gains are those of the page of claims, which writes them to
    ``configs/gains.yaml``; none where nothing was measured.
    """
    gains = yaml.safe_load(GAINS.read_text(encoding="utf-8"))
    rows = []
    for file in sorted((SHIPPED / folder).glob("*.yaml")):
        what, more, networks = _comment(file)
        rows.append({"name": file.stem, "what": what, "more": more, "networks": networks, **gains.get(file.stem, {})})
    return sorted(rows, key=lambda row: row["networks"])


def _comment(file: Path) -> tuple[str, str, str]:
    """Return the first sentence at the top of a file, what follows it, and the networks that it is for."""
    text = file.read_text(encoding="utf-8")
    said = " ".join(re.findall(r"^# (?!For: |Card: |Control of: )(.*)", text, re.MULTILINE))
    networks = "".join(re.findall(r"^# For: (.*)", text, re.MULTILINE))
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", said)
    return first, " ".join(others), networks


def layers_of_named(name: str) -> set[str]:
    """Return the kinds of layers of a network, built as its configuration says; refuse one that is not there."""
    from lightning_modules.cli.configurations import expand
    from lightning_modules.cli.lightning_cli import BuildOnly
    from lightning_modules.cli.named_model import by_position
    from lightning_modules.cli.samples import layers_of, subject

    built = BuildOnly(expand(by_position(["show", name])))
    return layers_of(*subject(built.model, built.datamodule))


def misfit(networks: str, has: Collection[str]) -> str:
    """Return why an initialization that is for some networks does not fit one with these layers; empty where it does.

    ``show MODEL INIT --plan`` says what exactly would be done.
    """
    needs = [need for pattern, need in NEEDS.items() if re.search(pattern, networks)]
    if needs and needs[0] not in has:
        return f"found no {needs[0]}"
    if ("vision" in networks and "words" in has) or ("language" in networks and "images" in has):
        return f"it is made for {networks}"
    return ""


def table(rows: Sequence[Mapping[str, Any]], has: Collection[str] | None = None) -> str:
    """Return a line for each row, as wide as the terminal, by what it is for; at the end what does not fit.

    ``has`` are the kinds of layers of the network that they shall fit; any do where it is None.
    """
    width = shutil.get_terminal_size((100, 24)).columns
    lines: list[str] = []
    group = ""
    others: dict[str, list[str]] = {}
    for row in rows:
        why = "" if has is None else misfit(row["networks"], has)
        if why:
            others.setdefault(why, []).append(row["name"])
            continue
        if row["networks"] != group:
            group = row["networks"]
            lines += ["", f"for {group}:"]
        head = f"{row['name']:{NAMES}}"
        if group:
            head += f"{row.get('best', ''):{NUMBERS}}"
        lines.append(head + textwrap.shorten(row["what"], width - len(head), placeholder=" …"))
    notes = [f"these do not fit, {why}: {', '.join(names)}" for why, names in others.items()]
    for note in [*notes, LEGEND] if group else []:
        lines += ["", textwrap.fill(note, width, subsequent_indent="  ", break_on_hyphens=False)]
    return "\n".join(lines).lstrip("\n")


def paragraph(row: Mapping[str, Any]) -> str:
    """Return all that is known of an initialization or an experiment, as wide as the terminal."""
    parts = [f"{row['what']} {row['more']}".strip()]
    if row["networks"]:
        parts.append(f"For {row['networks']}.")
    for key, title in GAINS_AS.items():
        if row.get(key, "–") != "–":
            parts.append(f"{title}{row[key].removesuffix('.')}.")
    return textwrap.fill(" ".join(parts), shutil.get_terminal_size((100, 24)).columns, break_on_hyphens=False)
