"""The circuit of two heads before and after training, and its scores over training beside the loss.

Letters: N tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from callbacks.figures.depth import COLORS
from callbacks.figures.mosaic import FAINT, INK, SEQUENTIAL
from callbacks.figures.tokens import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FEW = 8  # points of a curve that are marked
Curve = Sequence[tuple[float, float]]  # (step, value)


def circuit_figure(
    maps: Mapping[str, Mapping[str, Mapping[str, Tensor]]],
    curves: Mapping[str, Mapping[str, Curve]],
    tokens: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draw one map per head and moment of every arm, and below them each quantity over training with a line per arm.

    In a map a row is the token that looks, a column the one it sees.

    Args:
        maps: arm → moment (such as ``"before"``) → head (such as ``"layer 1, head 0"``) → map (N, N) of one text.
        curves: quantity (such as ``"loss"``) → arm → (step, value).
        tokens: the text, along the axes of the maps; none where empty.
        title: what is seen, in one line.
    """
    from matplotlib.figure import Figure

    heads = max(len(of_moment) for moments in maps.values() for of_moment in moments.values())
    columns = sum(len(moments) for moments in maps.values())
    side = 9.6 / max(columns, 4)
    figure = Figure(figsize=(max(side * columns, 8.4) + 0.6, side * heads + 3.2), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[side * heads + 0.6, 2.6], hspace=0.02)
    arms = dict.fromkeys([*maps, *(arm for of_arms in curves.values() for arm in of_arms)])
    colors = {arm: COLORS[number % len(COLORS)] for number, arm in enumerate(arms)}
    _maps(above, maps, heads, [visible(token) for token in tokens], colors)
    _curves(below, curves, colors)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _maps(figure: SubFigure, maps: Mapping, heads: int, tokens: Sequence[str], colors: Mapping[str, str]) -> None:
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0, vmax=1)
    widths = [len(moments) for moments in maps.values()]
    *parts, beside = figure.subfigures(1, len(maps) + 1, width_ratios=[*widths, 0.07 * sum(widths)], wspace=0.03)
    for part, (arm, moments) in zip(parts, maps.items(), strict=True):
        axes = part.subplots(heads, len(moments), squeeze=False)
        part.suptitle(arm, fontsize=10, color=colors[arm], fontweight="bold")
        for column, (moment, of_heads) in enumerate(moments.items()):
            axes[0, column].set_title(moment, fontsize=8.5, color=INK)
            for row, (head, values) in enumerate(of_heads.items()):
                axis = axes[row, column]
                image = axis.imshow(values.detach().float().cpu().numpy(), cmap=SEQUENTIAL, norm=norm)
                _name(axis, tokens if column == 0 else [], tokens if row == heads - 1 else [])
                if column == 0:
                    axis.set_ylabel(head, fontsize=8.5, color=INK)
    bar = beside.colorbar(image, cax=beside.add_axes((0.1, 0.3, 0.16, 0.45)), ticks=[0, 0.1, 0.5, 1])
    bar.ax.tick_params(labelsize=7, color=FAINT, labelcolor=INK, length=2)
    bar.outline.set_visible(False)
    bar.ax.set_title("attention", fontsize=7.5, color=INK, loc="left")


def _curves(figure: SubFigure, curves: Mapping[str, Mapping[str, Curve]], colors: Mapping[str, str]) -> None:
    for axis, (quantity, of_arms) in zip(
        figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True
    ):
        for arm, curve in of_arms.items():
            steps, values = np.array([*curve], dtype=float).reshape(-1, 2).T
            marker = "o" if len(steps) <= FEW else None
            axis.plot(steps, values, color=colors[arm], linewidth=1.8, marker=marker, markersize=2.6, label=arm)
        axis.set_title(quantity, fontsize=9, color=INK, loc="left")
        axis.set_xlabel("steps", fontsize=7.5, color=FAINT)
        axis.tick_params(labelsize=7, length=2, color=FAINT, labelcolor=INK)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#c8c8c8")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#eeeeee", linewidth=0.7)
        axis.set_axisbelow(True)
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8.5, frameon=False)


def _name(axis: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    axis.set_yticks(range(len(rows)), rows, fontsize=5.5)
    axis.set_xticks(range(len(columns)), columns, fontsize=5.5, rotation=90)
    axis.tick_params(length=0, pad=1.5, labelcolor=INK)
    axis.spines[:].set_visible(False)
