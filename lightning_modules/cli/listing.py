"""``structured-init list``: every initialization in one line, what it gained here, and whether it fits a network."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import yaml

from lightning_modules.cli.commands import documentation
from structured_init.errors import StructuredInitError, nearest, one_line
from structured_init.presets import SHIPPED

GAINS = SHIPPED / "gains.yaml"
LAYERS = 2  # of a model by name: what fits two layers fits all


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (\S+)", message):
            near = nearest(unknown[1], self._option_string_actions)
            message = f"'{unknown[1]}' is no option of list: {near}; a network is given with --for"
        raise StructuredInitError(message)


def initializations() -> list[dict[str, Any]]:
    """Return every shipped initialization: its name, what it is, for which networks, and what it gained here.

    The first two stand at the top of its file. Gains are those of the page of claims, which writes them to
    ``configs/gains.yaml``; none where nothing was measured.
    """
    gains = yaml.safe_load(GAINS.read_text(encoding="utf-8"))
    rows = []
    for file in sorted((SHIPPED / "init").glob("*.yaml")):
        comment = [line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
        text = [line for line in comment if not re.match("(For|Card|Control of): ", line)]
        networks = next(line.removeprefix("For: ") for line in comment if line.startswith("For: "))
        what = re.match(r".*?\.(?= [A-Z]|$)", " ".join(text))
        row = {"name": file.stem, "what": what[0] if what else text[0], "networks": networks}
        rows.append({**row, **gains.get(file.stem, {"gain": None, "controls": None, "today": None})})
    return rows


def list_command(args: Sequence[str]) -> None:
    """Print the table.

    Args:
        args: the command line after ``list``.

    Raises:
        StructuredInitError: there is no such network, or an option that the command does not have.
    """
    parser = _Parser(
        prog="structured-init list",
        description="List the initializations: what each is, for which networks, and what it gained here.",
        epilog=documentation(),
        allow_abbrev=False,
    )
    network = (
        "say which fit: a configuration (vit_digits, mine.yaml), a model of timm or transformers, or a config.json"
    )
    parser.add_argument("--for", dest="network", metavar="MODEL", help=network)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    rows = initializations()
    if options.network is not None:
        found = fitting(options.network, [row["name"] for row in rows])
        rows = [
            {"name": row["name"], "fits": found[row["name"]] == "", "why": found[row["name"]], **row} for row in rows
        ]
    print(json.dumps(rows, indent=1, ensure_ascii=False) if options.json else table(rows))


def fitting(name: str, presets: Sequence[str]) -> dict[str, str]:
    """Return why each initialization does not fit a network, by its name; an empty text where it does.

    Each is planned on the network, which is built here with fresh weights and not changed; no solver takes a step. Of a
    model by name two layers are built, and its samples are those that its host library names.

    Args:
        name: a configuration with a model, or a model of timm or transformers.
        presets: names of initializations.

    Raises:
        StructuredInitError: there is no such network.
    """
    from lightning_modules.cli.configurations import expand
    from lightning_modules.cli.lightning_cli import BuildOnly
    from lightning_modules.cli.show import NamedModel, by_position, leave_out_iterations, two_samples
    from structured_init import initialize
    from structured_init.initializer import preset
    from structured_init.running import host_inputs

    words = by_position(["show", name])
    built = BuildOnly(expand([*words, *([f"--model.layers={LAYERS}"] if words[1].startswith("--model") else [])]))
    model = built.model
    if isinstance(model, NamedModel):
        model = model.network
        args, named = host_inputs(model, batch=16) or ((), {})
        samples = named or (args[0] if args else None)
    else:
        samples = partial(two_samples, model, built.datamodule)
    why = {}
    for each in presets:
        initializer = preset(each)
        leave_out_iterations(initializer)
        try:
            real = (
                samples() if callable(samples) and (initializer.needs_batch or initializer.needs_batches) else samples
            )
            batches = None if callable(real) else [real]
            report = initialize(model, initializer, batch=real, batches=batches, dry_run=True, progress=False)
            why[each] = "" if report.changed or each == "default" else "it changes nothing here"
        except StructuredInitError as error:
            why[each] = one_line(error)
    return why


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: of all, or of what fits a network and then of what does not, with the reason."""
    if "fits" not in rows[0]:
        return _markdown(ALL, rows)
    fit, others = ([row for row in rows if row["fits"] is each] for each in (True, False))
    parts = [_markdown(ALL, fit)] if fit else ["none fits"]
    return "\n\n".join([*parts, *([_markdown(("name", "why"), others)] if others else [])])


ALL = ("name", "what", "networks", "gain", "controls", "today")
HEADS = {
    "name": "initialization",
    "networks": "for",
    "gain": "gained here",
    "controls": "due to its structure",
    "today": "over today's baseline",
    "why": "does not fit, because",
}


def _markdown(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADS.get(each, each) for each in columns)} |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[each] or "").replace("|", "\\|") for each in columns) + " |" for row in rows]
    return "\n".join(lines)
