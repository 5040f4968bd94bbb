"""A report as text and as HTML: one line per block, blocks that were treated alike folded into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from structured_init.entry import Entry
from structured_init.names import folded_name

BLOCK = re.compile(r"^(.*?\.\d+)\.(.+)$")  # up to the first number: blocks.0, transformer.h.3
OWN = re.compile(r"^(.+)\.(?:weight|bias)$")


def text(heading: Sequence[str], lines: Sequence[tuple[str, str]], remarks: Sequence[str]) -> str:
    """Return what ``print(report)`` shows: the heading, a line per block, the remarks."""
    width = min(32, max((len(name) for name, _ in lines), default=0))
    rows = [f"{name:<{width}}  {what}" for name, what in lines]
    return "\n".join([*heading, *([""] if rows else []), *rows, *([""] if remarks else []), *remarks])


def html(heading: str, lines: Sequence[tuple[str, str]], remarks: Sequence[str]) -> str:
    """Return what a notebook shows: the same as a table."""
    rows = "".join(f"<tr><td><code>{escape(name)}</code></td><td>{escape(what)}</td></tr>" for name, what in lines)
    items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    table = f"<p>{escape(heading)}</p><table><tbody>{rows}</tbody></table>"
    return table + (f"<ul>{items}</ul>" if items else "")


def set_lines(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return (block, what was set in it); neighbouring blocks that were treated alike are one."""
    blocks: dict[str, list[Entry]] = {}
    for entry in entries:
        blocks.setdefault(block_of(entry.names[0]), []).append(entry)
    runs: list[list[str]] = []
    for name, inside in blocks.items():
        if not any(entry.set_by for entry in inside):
            continue
        if runs and _treatment(runs[-1][0], blocks[runs[-1][0]]) == _treatment(name, inside):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [(folded_name(run), _what([blocks[name] for name in run], run)) for run in runs]


def block_of(name: str) -> str:
    """Return the block of a parameter: ``blocks.0`` of ``blocks.0.attn.qkv.weight``, ``head`` of ``head.bias``."""
    match = BLOCK.match(name) or OWN.match(name)
    return match[1] if match else name


def _treatment(block: str, entries: Sequence[Entry]) -> tuple:
    """Return all in which blocks of one line agree."""
    inside = tuple((_inside(entry, block), entry.shape, entry.set_by, entry.trainable) for entry in entries)
    return re.sub(r"\d+", "#", block), inside


def _inside(entry: Entry, block: str) -> str:
    return entry.names[0].removeprefix(block).lstrip(".").removesuffix(".weight")


def _what(blocks: Sequence[Sequence[Entry]], names: Sequence[str]) -> str:
    """Say what was set in blocks that were treated alike, grouped by who set it."""
    groups: dict[tuple[tuple[str, ...], bool], list[Entry]] = {}
    labels: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for name, entries in zip(names, blocks, strict=True):
        for entry in entries:
            if entry.set_by:
                groups.setdefault((entry.set_by, entry.trainable), []).append(entry)
                if name == names[0]:
                    labels.setdefault((entry.set_by, entry.trainable), []).append(_inside(entry, name))
    said = []
    for (set_by, trainable), entries in groups.items():
        tensors = ", ".join(_folded([label for label in labels[set_by, trainable] if label]))
        before = _span([entry.before.std for entry in entries if entry.before])
        after = _span([entry.after.std for entry in entries if entry.after])
        frozen = "" if trainable else ", frozen"
        said.append(f"{tensors} [{who(set_by)}] std {before} → {after}{frozen}".strip())
    rest = sum(not entry.set_by for entry in blocks[0])
    return "; ".join([*said, *([f"{rest} more as the host built them"] if rest else [])])


def who(set_by: Sequence[str]) -> str:
    """Join who set a tensor: ``Mimetic: query_key, value_output`` instead of the name twice."""
    parts: dict[str, list[str]] = {}
    for each in set_by:
        name, _, part = each.partition(": ")
        parts.setdefault(name, []).extend([part] if part else [])
    return " + ".join(f"{name}: {', '.join(inside)}" if inside else name for name, inside in parts.items())


def _span(values: Sequence[float]) -> str:
    low, high = (f"{value:.2g}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def unset_blocks(entries: Iterable[Entry]) -> list[str]:
    """Return the blocks of which nothing was set, folded."""
    touched: dict[str, bool] = {}
    for entry in entries:
        block = block_of(entry.names[0])
        touched[block] = touched.get(block, False) or bool(entry.set_by)
    return _folded([block for block, was in touched.items() if not was])


def _folded(blocks: Sequence[str]) -> list[str]:
    """Join neighbours that differ in a number."""
    runs: dict[str, list[str]] = {}
    for block in blocks:
        runs.setdefault(re.sub(r"\d+", "#", block), []).append(block)
    return [folded_name(run) for run in runs.values()]


def alike(remarks: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give each remark once, with the sites that it is about."""
    sites: dict[tuple[str, str], list[str]] = {}
    for name, what in remarks.items():
        sites.setdefault((re.sub(r"\d+", "#", name), what), []).append(name)
    return [(folded_name(names), what) for (_, what), names in sites.items()]
