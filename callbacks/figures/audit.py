"""An audit in one picture: what every parameter of every block was drawn from, scales through depth, diagonals."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from callbacks.figures.attention import COLORS
from callbacks.figures.mosaic import FAINT, INK, evenly, name_layers, plain_curves, wrapped
from structured_init.analysis.audit import Audit
from structured_init.analysis.audit.findings import stacks
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from structured_init.analysis.audit import Record

# Kinds that are drawn alike, and their colour: constants pale, draws strong, what nobody knows red.
KINDS = {
    "zeros, ones, constants": "#d9dce1",
    "normal": "#30638e",
    "truncated normal": "#00798c",
    "uniform": "#edae49",
    "structured": "#7b4f9d",
    "unclear": "#b3a68f",
    "no known distribution": "#c65b7c",
    "never initialized": "#d1262f",
}
GROUPS = {
    "constant": "zeros, ones, constants",
    "log of uniform": "uniform",
    "log-uniform step": "uniform",
    "other": "no known distribution",
    "memory": "never initialized",
    "unreadable": "unclear",
}
MOST_ROWS, MOST_COLUMNS = 40, 48
CELL, SIDE, LETTER = 0.24, 3.9, 0.068  # inches: a cell, the plots on the right, a letter of the small print


def audit_figure(audit: Audit) -> Figure:
    """Draw a grid of parameters × blocks coloured by kind, and beside it what changes through depth.

    Parameters outside of every repeated block are left out where there are such blocks. In the words at the right of
    a row "…" says that blocks differ.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not isinstance(audit, Audit):
        raise StructuredInitError(f"audit_figure takes what audit(model) returns, got {type(audit).__name__}")
    rows, columns = _grid(audit)
    words = [_drawn_from(list(row.values())) for row in rows.values()]
    before = 0.3 + LETTER * max(len(_shortened(name)) for name in rows)
    after = 0.2 + LETTER * max(map(len, words))
    height = max(CELL * len(rows) + 0.9, 4.2)
    wide = max(CELL * len(columns), 0.9)
    width = before + wide + after + SIDE
    letters = int((width - 0.3) * 72 / (0.62 * 7.5))
    said = [
        (line, "#b3202a" if each.problem else INK)
        for each in audit.findings[:4]
        for line in textwrap.wrap(str(each), letters, max_lines=3, placeholder=" …", subsequent_indent="  ")
    ]
    said += [(f"and {len(audit.findings) - 4} more", FAINT)] if len(audit.findings) > 4 else []
    said = said or [("nothing suspicious was found", FAINT)]
    foot = 0.55 + 0.17 * len(said)
    figure = Figure()
    cells = figure.add_axes((0, 0, 1, 1))
    top = height + foot + 0.35  # inches of what lies below the title and the names of blocks
    title = wrapped(audit.headline(), width - 0.3, 10)
    total = top + max(0.0, _draw_cells(cells, rows, columns, words) - 0.55) + 0.17 * title.count("\n")
    figure.set_size_inches(width, total)
    figure.suptitle(title, x=0.15 / width, y=1 - 0.1 / total, ha="left", va="top", fontsize=10, color=INK)
    tall = CELL * len(rows)
    cells.set_position((before / width, (top - 0.95 - tall) / total, wide / width, tall / total))
    left = (before + wide + after + 0.55) / width
    panels = [_draw_scales, _draw_products] if audit.products else [_draw_scales]
    each_tall = (height - 0.9 - 0.75 * (len(panels) - 1)) / len(panels)
    for index, draw in enumerate(panels):
        bottom = top - 0.75 - (index + 1) * each_tall - 0.75 * index
        draw(figure.add_axes([left, bottom / total, (SIDE - 0.75) / width, each_tall / total]), audit)
    seen = {_group(record) for row in rows.values() for record in row.values()}
    handles = [Patch(color=color, label=kind) for kind, color in KINDS.items() if kind in seen]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.05 / width, (foot - 0.1) / total), fontsize=7.5,
                  frameon=False, ncols=len(handles), handlelength=1.0, columnspacing=1.4)  # fmt: skip
    for index, (line, color) in enumerate(said):
        figure.text(0.15 / width, (foot - 0.42 - 0.17 * index) / total, line, fontsize=7.5, color=color, va="top")
    return figure


def _grid(audit: Audit) -> tuple[dict[str, dict[str, Record]], list[str]]:
    """Return row → column → record, and the columns."""
    held = {record.block for record in audit.records}
    ran = dict.fromkeys(scale.name for scale in audit.blocks)  # in the order by which the curves number them
    blocks = [block for block in ran or _repeated(audit.records) if block in held]
    inside = [record for record in audit.records if record.block in blocks]
    if len(blocks) < 2:
        blocks, inside = [""], list(audit.records)
    blocks = [blocks[i] for i in evenly(len(blocks), MOST_COLUMNS)]
    rows: dict[str, dict[str, Record]] = {}
    for record in inside:
        if record.block in blocks or blocks == [""]:
            name = record.name if blocks == [""] else record.inside or record.name
            rows.setdefault(name, {})[record.block if blocks != [""] else ""] = record
    if len(rows) > MOST_ROWS:  # constants say least
        constant = lambda row: all(each.distribution.kind == "constant" for each in row.values())  # noqa: E731
        rows = {name: row for name, row in rows.items() if not constant(row)} or rows
    kept = [list(rows)[i] for i in evenly(len(rows), MOST_ROWS)]
    return {name: rows[name] for name in kept}, blocks


def _repeated(records: Sequence[Record]) -> list[str]:
    """Return the blocks whose names differ from another's in numbers alone, where one has three parameters or more."""
    alike: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        alike[re.sub(r"\d+", "#", record.block)][record.block] += 1
    return [block for group in alike.values() if len(group) > 1 and max(group.values()) > 2 for block in group]


def _drawn_from(records: Sequence[Record]) -> str:
    """Say what a row was drawn from; where blocks differ, what they have in common."""
    from structured_init.analysis.audit.records import label

    said = list(dict.fromkeys(label(record) for record in records))
    first = records[0].references[:1]
    same = first and all(each.references and each.references[0].name == first[0].name for each in records)
    if len(said) > 1 and same:
        return f"{first[0].expected.kind} ({first[0].name}), scales differ"
    return textwrap.shorten(said[0], 52, placeholder=" …") + (" …" if len(said) > 1 else "")


def _draw_cells(
    axis: Axes, rows: Mapping[str, Mapping[str, Record]], columns: Sequence[str], words: Sequence[str]
) -> float:
    """Draw the grid, and return the inches that the names of blocks need above it; see :func:`name_layers`."""
    from matplotlib.colors import to_rgb

    picture = np.ones((len(rows), len(columns), 3))
    for index, row in enumerate(rows.values()):
        for column, record in row.items():
            picture[index, columns.index(column)] = to_rgb(KINDS[_group(record)])
    axis.imshow(picture, aspect="auto", interpolation="nearest")
    axis.set_yticks(range(len(rows)), [_shortened(name) for name in rows], fontsize=7)
    above = name_layers(axis, columns)
    axis.tick_params(labelsize=7, length=0, top=False, labeltop=True, labelbottom=False, pad=3, labelcolor=INK)
    axis.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1.2)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)
    for index, line in enumerate(words):
        axis.annotate(line, (1, index), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      fontsize=7, color=FAINT, va="center")  # fmt: skip
    return above


def _draw_scales(axis: Axes, audit: Audit) -> None:
    """Draw activations and gradients after every block; a line joins equal blocks that run one behind the other."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    _frame(axis, "root mean square after each block")
    places = {block: place for place, block in enumerate(audit.blocks)}
    first = next((each.gradient for each in audit.blocks if each.gradient > 0), 1.0)
    for index, (name, values) in enumerate((
        ("activation", [each.activation for each in audit.blocks]),
        ("gradient, first = 1", [each.gradient / first for each in audit.blocks]),
    )):  # fmt: skip
        if any(value > 0 and np.isfinite(value) for value in values):
            axis.plot(values, "o", color=COLORS[index + 1], markersize=3, label=name)
            for stack in stacks(audit.blocks):
                run = [places[block] for block in stack]
                axis.plot(run, [values[place] for place in run], color=COLORS[index + 1], linewidth=1.4)
    if axis.lines:
        axis.set_xlim(-0.3, len(audit.blocks) - 0.7)
        axis.set_yscale("log")
        # At least one decade, so that a flat line looks flat.
        low, high = axis.get_ylim()
        missing = max(0.0, 1 - np.log10(high / low)) / 2
        axis.set_ylim(low / 10**missing, high * 10**missing)
        decades = np.log10(axis.get_ylim()[1] / axis.get_ylim()[0])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.legend(fontsize=7, frameon=False)
        axis.set_xlabel("block", fontsize=7.5, color=FAINT)
    else:
        centred = {"ha": "center", "va": "center", "transform": axis.transAxes}
        why = "no equal blocks were seen\nto run one behind the other" if audit.gradients else "no batch was run"
        axis.text(0.5, 0.5, why, fontsize=8, color=FAINT, **centred)
        axis.set(xticks=[], yticks=[])


def _draw_products(axis: Axes, audit: Audit) -> None:
    """Draw mean diagonals of the attention products, in standard deviations of the numbers off the diagonal."""
    _frame(axis, "mean diagonal / spread off the diagonal")
    for index, (product, name) in enumerate((("query_key", "$W_q W_k^\\top$"), ("value_output", "$W_v W_o$"))):
        values = [
            numbers[f"{product}_diagonal"] / (numbers[f"{product}_off_diagonal_std"] or 1.0)
            for numbers in audit.products.values()
        ]
        axis.plot(range(len(values)), values, "o-", color=COLORS[index + 3], markersize=3, linewidth=1.4, label=name)
    low, high = axis.get_ylim()
    reach = 1.15 * max(abs(low), abs(high), 1.0)
    axis.set_ylim(-reach, reach)
    axis.axhline(0, color="#c8c8c8", linewidth=0.8)
    axis.legend(fontsize=7, frameon=False, ncols=2)
    axis.set_xlabel("attention layer", fontsize=7.5, color=FAINT)


def _frame(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=8.5, color=INK)
    axis.locator_params("x", integer=True, min_n_ticks=1)
    plain_curves(axis)


def _group(record: Record) -> str:
    kind = record.distribution.kind
    if kind == "unclear" and record.references:
        kind = record.references[0].expected.kind
    return kind if kind in KINDS else GROUPS.get(kind, "structured")


def _shortened(name: str, most: int = 34) -> str:
    name = name.removesuffix(".weight")
    return name if len(name) <= most else f"…{name[-most + 1 :]}"
