"""The tables of the page of presets, made from the files of ``configs`` when the site is built.

A page asks for the table of a folder by a comment, ``<!-- presets: init -->``. What a preset does is the first sentence
of the comment at the top of its file; the lines ``# For:``, ``# Card:`` and ``# Control of:`` that follow say the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MARK = re.compile(r"<!-- presets: (\w+) -->")
KEY = re.compile(r"(For|Card|Control of): (.+)")


def described(text: str) -> dict[str, str]:
    """Return what the comment at the top of a file says: its first sentence as ``does``, and its keys by name."""
    comment = re.match(r"(?:#.*\n)*", text)[0]
    lines = [line.removeprefix("#").strip() for line in comment.splitlines()]
    keys = dict(match.groups() for line in lines if (match := KEY.fullmatch(line)))
    prose = " ".join(line for line in lines if not KEY.fullmatch(line))
    return {"does": re.split(r"(?<=\.) (?=[A-Z])", prose)[0].removesuffix("."), **keys}


def initializers(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the classes that a preset composes, in their order."""
    parts = settings.get("init_args", {}).get("initializers")
    for part in parts or ():
        yield from initializers(part)
    if parts is None:
        yield settings["class_path"]


def linked(text: str) -> str:
    """Link the arXiv numbers of a sentence."""
    return re.sub(r"\b\d{4}\.\d{5}\b", r"[\g<0>](https://arxiv.org/abs/\g<0>)", text)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def presets(folder: str) -> str:
    """Return the table of ``configs/<folder>``, for a page in ``docs``."""
    files = sorted((CONFIGS / folder).glob("*.yaml"))
    if not files:
        raise FileNotFoundError(f"a page asks for the table of {CONFIGS / folder}, where there are no presets")
    texts = {file.stem: file.read_text(encoding="utf-8") for file in files}
    links = {name: f"[`{name}`](../configs/{folder}/{name}.yaml)" for name in texts}
    rows = []
    for name, text in texts.items():
        said = described(text)
        if folder != "init":
            rows.append((links[name], linked(said["does"])))
            continue
        classes = dict.fromkeys(initializers(yaml.safe_load(text)["init"]["initializer"]))
        parts = " + ".join(f"`{name}`" for name in classes) + f" ([card]({said['Card']}.md))"
        control = ", ".join(f"`{arm}`" for arm in said.get("Control of", "").split(", ") if arm)
        does = linked(said["does"]) + (f". **Control** of {control}" if control else "")
        rows.append((links[name], does, said["For"], parts))
    head = ("name", "does", "for", "initializer")
    return table(head if folder == "init" else head[:2], rows)


def filled(text: str) -> str:
    """Return the text of a page with its tables in place of the comments that ask for them."""
    return MARK.sub(lambda mark: presets(mark[1]), text)


def fill(app: Any, docname: str, source: list[str]) -> None:
    """Put the tables into a page that asks for them, and read it again when a preset has changed."""
    if MARK.search(source[0]):
        source[0] = filled(source[0])
        for file in sorted(CONFIGS.rglob("*.yaml")):
            app.env.note_dependency(str(file))


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
