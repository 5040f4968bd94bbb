"""The figure of paired differences: a dot per seed, the mean and its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from comparison.report.theme import FAINT, INK, Style, figure_settings, new_figure
from comparison.results.effects import ArmResult, Effect, Effects
from comparison.results.paired import FEWEST_FOR_INTERVAL, Interval
from comparison.results.tables import decimals, diverged_text, interval_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTROLS = {"control": "the same-positions control", "scrambled": "the same weights scrambled"}


def difference_figure(found: Effects, styles: Mapping[str, Style], to: str) -> Figure | None:
    """Draw paired differences: a dot per seed, the mean and its 95 % t interval.

    Args:
        found: the effects at one place of the grid.
        styles: style of every arm.
        to: ``"baseline"``, ``"control"`` or ``"scrambled"``.

    Returns:
        None where nothing is paired.
    """
    shown = [(arm, effect) for arm in found.arms if (effect := getattr(arm, to)) is not None]
    if not shown:
        return None
    with figure_settings():
        figure = new_figure(4.5, 0.36 * len(shown) + 0.75)
        axis = figure.subplots()
        axis.set_xlim(*_limits([effect for _, effect in shown]))
        axis.axvline(0, color=FAINT, linewidth=0.9)
        for row, (arm, effect) in enumerate(shown):
            _row(axis, row, styles[arm.name].paper, effect.interval, list(effect.by_seed.values()))
            at = {"xycoords": ("axes fraction", "data"), "va": "center", "annotation_clip": False}
            color = FAINT if effect.is_gain is None else INK
            axis.annotate(_text(arm, effect, decimals(found)), (1.03, row), color=color, **at)
        names = [arm.name if to == "baseline" else f"{arm.name} − {effect.reference}" for arm, effect in shown]
        axis.set_yticks(range(len(shown)), names)
        for label, (arm, _) in zip(axis.get_yticklabels(), shown, strict=True):
            label.set_color(styles[arm.name].paper)
            label.set_fontweight("bold")
        axis.set_ylim(len(shown) - 0.45, -0.55)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", pad=7)
        axis.spines["left"].set_visible(False)
        unit = f" ({found.metric.unit})" if found.metric.unit else ""
        axis.set_xlabel(f"difference in {found.metric.words}{unit}; {found.metric.better}")
        axis.set_title(f"Difference to {CONTROLS.get(to, found.baseline)}")
        axis.xaxis.set_major_formatter(lambda value, _: _tick(value, max(axis.get_xlim())))
    return figure


def _limits(shown: Sequence[Effect]) -> tuple[float, float]:
    """Return the ends of the axis: all dots are on it, and of intervals as much as does not hide them."""
    farthest = max(abs(value) for effect in shown for value in effect.by_seed.values())
    finite = [max(abs(e.interval.low), abs(e.interval.high)) for e in shown if e.interval.samples > 1]
    reach = 1.12 * min(max([farthest, *finite]), 2.2 * farthest) or 1.0
    lowest = min(0.0, *(max(-reach, _low(effect.interval)) for effect in shown))
    highest = max(0.0, *(min(reach, _high(effect.interval)) for effect in shown))
    margin = 0.06 * (highest - lowest) or 1.0
    return lowest - margin, highest + margin


def _text(arm: ArmResult, effect: Effect, digits: int) -> str:
    text = interval_text(effect.interval, digits, signed=True)
    return f"{text} ({diverged_text(arm)})" if arm.diverged else text


def _row(axis: Axes, row: int, color: str, interval: Interval, values: Sequence[float]) -> None:
    left, right = axis.get_xlim()
    axis.plot(values, [row + 0.2] * len(values), "o", color=color, markersize=3.4, alpha=0.5, markeredgewidth=0)
    if not math.isinf(interval.half_width) and interval.samples >= FEWEST_FOR_INTERVAL:
        low, high = max(interval.low, left), min(interval.high, right)
        axis.plot([low, high], [row, row], color=color, linewidth=2.2, alpha=0.9)
        for end, shown, mark in ((interval.low, low, "<"), (interval.high, high, ">")):
            if end != shown:  # the interval goes on beyond the picture
                axis.plot([shown], [row], mark, color=color, markersize=5, clip_on=False)
    axis.plot([interval.mean], [row], "D", color=color, markersize=4.6, markeredgecolor="white", markeredgewidth=0.6)


def _tick(value: float, end: float) -> str:
    text = f"{value:+g}" if abs(value) > 1e-9 * end else "0"
    return text.replace("-", "−")


def _low(interval: Interval) -> float:
    return interval.mean if math.isinf(interval.low) else interval.low


def _high(interval: Interval) -> float:
    return interval.mean if math.isinf(interval.high) else interval.high
