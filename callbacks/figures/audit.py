"""An audit in one picture: what every parameter of every block was drawn from, scales through depth, diagonals."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from callbacks.figures.style import COLORS, FAINT, evenly, name_layers, new_figure, styled
from structured_init.analysis import Audit
from structured_init.checks.lines import label
from structured_init.checks.signal import stacks
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from structured_init.checks.records import Record

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
CELL, LETTER = 0.24, 0.068  # inches: a cell, a letter of the small print
MOST_LETTERS = 48  # of what stands beside a row


@styled
def audit_figure(audit: Audit) -> Figure:
    """Draw a grid of parameters × blocks coloured by kind, and beside it what changes through depth.

    Parameters outside of every repeated block are left out where there are such blocks. In the words at the right of
    a row "…" says that blocks differ.
    """
    from matplotlib.patches import Patch

    if not isinstance(audit, Audit):
        raise StructuredInitError(f"audit_figure takes what audit(model) returns, got {type(audit).__name__}")
    rows, columns = _grid(audit)
    words = [_drawn_from([*row.values()]) for row in rows.values()]
    letters = max(map(len, rows)) + max(map(len, words))
    cells, panel = max(CELL * len(columns), 0.9), 3.2
    figure = new_figure(cells + panel + LETTER * letters + 1, max(CELL * len(rows), 3.5) + 1.5)
    figure.suptitle(audit.headline(), x=0.01, horizontalalignment="left", wrap=True)
    panels = ["scales", "products"] if audit.products else ["scales"]
    axes = figure.subplot_mosaic([["cells", name] for name in panels], width_ratios=[cells, panel])
    _draw_cells(axes["cells"], rows, columns, words)
    _draw_scales(axes["scales"], audit)
    if audit.products:
        _draw_products(axes["products"], audit)
    seen = {_group(record) for row in rows.values() for record in row.values()}
    handles = [Patch(color=color, label=kind) for kind, color in KINDS.items() if kind in seen]
    legend = figure.legend(
        handles=handles, title=_said(audit), loc="outside lower left", alignment="left", ncols=len(handles)
    )
    legend.get_title().set_color("#b3202a" if any(finding.problem for finding in audit.findings) else FAINT)
    return figure


def _said(audit: Audit) -> str:
    """Return the first findings, a line or a few each."""
    lines = [textwrap.fill(textwrap.shorten(str(each), 350, placeholder=" …"), 130) for each in audit.findings[:4]]
    if len(audit.findings) > 4:
        lines.append(f"and {len(audit.findings) - 4} more")
    return "\n".join(lines) or "nothing suspicious was found"


def _grid(audit: Audit) -> tuple[dict[str, dict[str, Record]], list[str]]:
    """Return row → column → record, and the columns."""
    held = {record.block for record in audit.records}
    ran = [scale.name for scale in audit.blocks]  # in the order by which the curves number them
    blocks = [block for block in dict.fromkeys(ran or _repeated(audit.records)) if block in held]
    columns = [blocks[place] for place in evenly(len(blocks), MOST_COLUMNS)] if len(blocks) > 1 else [""]
    rows: dict[str, dict[str, Record]] = {}
    for record in audit.records:
        if columns == [""]:
            rows[record.name] = {"": record}
        elif record.block in columns:
            rows.setdefault(record.inside or record.name, {})[record.block] = record
    return {name: rows[name] for name in [[*rows][place] for place in evenly(len(rows), MOST_ROWS)]}, columns


def _repeated(records: Sequence[Record]) -> list[str]:
    """Return the blocks whose names differ from another's in numbers alone, where one has three parameters or more."""
    alike: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        alike[re.sub(r"\d+", "#", record.block)][record.block] += 1
    return [block for group in alike.values() if len(group) > 1 and max(group.values()) > 2 for block in group]


def _drawn_from(records: Sequence[Record]) -> str:
    """Say what a row was drawn from; where blocks differ, what they have in common."""
    said = [*dict.fromkeys(label(record) for record in records)]
    nearest = {
        (each.references[0].expected.kind, each.references[0].name) if each.references else None for each in records
    }
    common = nearest.pop()
    if len(said) > 1 and not nearest and common is not None:
        kind, name = common
        return f"{kind} ({name}), scales differ"
    return textwrap.shorten(said[0], MOST_LETTERS, placeholder=" …") + (" …" if len(said) > 1 else "")


def _draw_cells(
    axis: Axes, rows: Mapping[str, Mapping[str, Record]], columns: Sequence[str], words: Sequence[str]
) -> None:
    from matplotlib.colors import to_rgb

    picture = np.ones((len(rows), len(columns), 3))
    for index, row in enumerate(rows.values()):
        for column, record in row.items():
            picture[index, columns.index(column)] = to_rgb(KINDS[_group(record)])
    axis.imshow(picture, aspect="auto")
    name_layers(axis, columns)
    axis.set_yticks(range(len(rows)), [name.removesuffix(".weight") for name in rows])
    axis.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    beside = axis.secondary_yaxis("right")
    beside.set_yticks(range(len(rows)), words)
    beside.tick_params(length=0, labelcolor=FAINT)
    for lines, count in ((axis.axvline, len(columns)), (axis.axhline, len(rows))):
        for place in range(1, count):
            lines(place - 0.5, color="white", linewidth=1.2)
    axis.spines[:].set_visible(False)
    beside.spines[:].set_visible(False)


def _draw_scales(axis: Axes, audit: Audit) -> None:
    """Draw activations and gradients after every block; a line joins equal blocks that run one behind the other."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set(title="root mean square after each block", xlabel="block")
    places = {block: place for place, block in enumerate(audit.blocks)}
    first = next((each.gradient for each in audit.blocks if each.gradient > 0), 1.0)
    activations = [each.activation for each in audit.blocks]
    gradients = [each.gradient / first for each in audit.blocks]
    for color, name, values in (
        (COLORS[1], "activation", activations),
        (COLORS[2], "gradient, first = 1", gradients),
    ):
        if not any(value > 0 and np.isfinite(value) for value in values):
            continue
        axis.plot(values, "o", color=color, markersize=3, label=name)
        for stack in stacks(audit.blocks):
            run = [places[block] for block in stack]
            axis.plot(run, [values[place] for place in run], "-", color=color)
    if not axis.lines:
        why = "no equal blocks were seen\nto run one behind the other" if audit.gradients else "no batch was run"
        axis.text(0.5, 0.5, why, color=FAINT, ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    missing = max(1.0, (10 * low / high) ** 0.5)  # at least one decade, so that a flat line looks flat
    axis.set_ylim(low / missing, high * missing)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())
    axis.locator_params("x", integer=True, min_n_ticks=1)
    axis.legend()
    axis.grid(axis="y")


def _draw_products(axis: Axes, audit: Audit) -> None:
    """Draw mean diagonals of the attention products, in standard deviations of the numbers off the diagonal."""
    axis.set(title="mean diagonal / spread off the diagonal", xlabel="attention layer")
    for color, product, name in (
        (COLORS[3], "query_key", "$W_q W_k^\\top$"),
        (COLORS[4], "value_output", "$W_v W_o$"),
    ):
        values = []
        for numbers in audit.products.values():
            values.append(numbers[f"{product}_diagonal"] / (numbers[f"{product}_off_diagonal_std"] or 1.0))
        axis.plot(values, "o-", color=color, markersize=3, label=name)
    low, high = axis.get_ylim()
    reach = 1.15 * max(1.0, -low, high)
    axis.set_ylim(-reach, reach)
    axis.locator_params("x", integer=True, min_n_ticks=1)
    axis.legend(ncols=2)
    axis.grid(axis="y")


def _group(record: Record) -> str:
    kind = record.distribution.kind
    if kind == "unclear" and record.references:
        kind = record.references[0].expected.kind
    return kind if kind in KINDS else GROUPS.get(kind, "structured")
