"""An audit in one picture: what every parameter of every block was drawn from, scales through depth."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from callbacks.figures.style import COLORS, FAINT, every_value, name_layers, new_figure, some, styled
from structured_init.analysis import Audit
from structured_init.checks.lines import label
from structured_init.checks.of_a_pass import stacks
from structured_init.checks.references import equal_references
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

    Parameters outside of the blocks that were run are left out where there are several. In the words at the right of
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
    left, right = figure.subplots(1, 2, width_ratios=[cells, panel])
    _draw_cells(left, rows, columns, words)
    _draw_scales(right, audit)
    seen = set(map(_group, every_value(rows)))
    handles = [Patch(color=color, label=kind) for kind, color in KINDS.items() if kind in seen]
    legend = figure.legend(
        handles=handles, title=_said(audit), loc="outside lower left", alignment="left", ncols=len(handles)
    )
    legend.get_title().set_color("#b3202a" if audit.findings else FAINT)
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
    blocks = [scale.name for scale in audit.blocks if scale.name in held]  # in the order of the curve
    columns = some(blocks, MOST_COLUMNS) if len(blocks) > 1 else [""]
    rows: dict[str, dict[str, Record]] = {}
    for record in audit.records:
        if columns == [""]:
            rows[record.name] = {"": record}
        elif record.block in columns:
            rows.setdefault(record.inside or record.name, {})[record.block] = record
    return {name: rows[name] for name in some([*rows], MOST_ROWS)}, columns


def _drawn_from(records: Sequence[Record]) -> str:
    """Say what the first of a row was drawn from, and that blocks differ, where they do."""
    said = [*dict.fromkeys(label(record) for record in records)]
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
    axis.vlines(np.arange(1, len(columns)) - 0.5, *axis.get_ylim(), colors="white", linewidths=1.2)
    axis.hlines(np.arange(1, len(rows)) - 0.5, *axis.get_xlim(), colors="white", linewidths=1.2)
    axis.spines[:].set_visible(False)
    beside.spines[:].set_visible(False)


def _draw_scales(axis: Axes, audit: Audit) -> None:
    """Draw activations after every block; a line joins equal blocks that run one behind the other."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set(title="root mean square of activations", xlabel="block")
    values = np.array([each.activation for each in audit.blocks])
    if not (np.isfinite(values) & (values > 0)).any():
        why = "no equal blocks were seen\nto run one behind the other" if audit.gradients else "no batch was run"
        axis.text(0.5, 0.5, why, color=FAINT, ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    axis.plot(values, "o", color=COLORS[1], markersize=3)
    for stack in stacks(audit.blocks):
        places = [audit.blocks.index(block) for block in stack]
        axis.plot(places, values[places], "-", color=COLORS[1])
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    missing = max(1.0, (10 * low / high) ** 0.5)  # at least one decade, so that a flat line looks flat
    axis.set_ylim(low / missing, high * missing)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())
    axis.locator_params("x", integer=True, min_n_ticks=1)
    axis.grid(axis="y")


def _group(record: Record) -> str:
    kind = record.kind
    if kind == "unclear":
        kind = next(iter(equal_references(record).values()), record.distribution).kind
    return kind if kind in KINDS else GROUPS.get(kind, "structured")
