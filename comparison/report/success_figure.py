"""The figure of successes: the share of an arm's runs that have succeeded, over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comparison.report.theme import Style, figure_settings, label_ends, new_figure
from comparison.results.success import Successes, Times
from comparison.results.success_table import share_text, threshold_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL = 0.135  # inches that the name of an arm takes beside the lines


def success_figure(found: Successes, styles: Mapping[str, Style]) -> Figure | None:
    """Draw Kaplan and Meier's curves upside down; None where no run has a curve.

    Args:
        found: the successes at one place of the grid.
        styles: style of every arm.
    """
    shown = {arm.name: arm for arm in found.arms if arm.times is not None}
    if not shown:
        return None
    last = max(max([*arm.times.steps, *arm.times.censored]) for arm in shown.values() if arm.times)
    with figure_settings():
        figure = new_figure(6.6, max(2.9, LABEL * len(shown) + 0.9))
        axis = figure.subplots()
        ends = {}
        for name, arm in shown.items():
            assert arm.times is not None
            style = styles[name]
            x, y = _stairs(arm.times, last)
            axis.plot(x, y, color=style.paper, linestyle=style.dash, linewidth=1.7, solid_capstyle="butt")
            # A run that ends without success, where the arm's line stands then.
            stands = [max([0.0, *(v for at, v in zip(x, y, strict=True) if at <= end)]) for end in arm.times.censored]
            axis.plot(arm.times.censored, stands, "|", color=style.paper, markersize=6, clip_on=False)
            ends[name] = y[-1]
        axis.set_xlim(0, 1.005 * last)
        axis.set_ylim(-3, 103)
        axis.set_yticks([0, 25, 50, 75, 100])
        axis.grid(axis="x", visible=False)
        axis.set_xlabel("optimizer steps")
        axis.set_title(f"runs that have reached {threshold_text(found).replace('test ', '')} on validation, %")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        figure.canvas.draw()  # the layout is known only now, and the labels' distance with it
        label_ends(axis, ends, styles, {name: f"{name} {share_text(arm.share)}" for name, arm in shown.items()})
    return figure


def _stairs(times: Times, last: float) -> tuple[list[float], list[float]]:
    """Return a line that rises where a run succeeds, in percent."""
    x, y = [0.0], [0.0]
    for at, share in zip(times.steps, times.shares, strict=True):
        x += [at, at]
        y += [y[-1], 100 * share]
    return [*x, last], [*y, y[-1]]
