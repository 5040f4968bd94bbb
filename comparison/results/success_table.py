"""The table of a comparison that counts successes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from comparison.results.effects import effects
from comparison.results.records import (
    Manifest,
    chosen_learning_rates,
    load_curves,
    load_results,
    point_label,
    points,
)
from comparison.results.success import Contrast, Share, Successes, Times, successes
from comparison.results.tables import Cell, Table, number, p_text


def success_headline(
    folder: str | os.PathLike[str],
    manifest: Manifest,
    controls: Mapping[str, str],
    scrambled: Mapping[str, str] | None = None,
) -> str:
    """Return the table in Markdown, one per place of the grid.

    Args:
        folder: of the comparison.
        manifest: of the comparison; its ``success`` is the threshold.
        controls: arm → its same-positions control.
        scrambled: arm → the arm that is the same initialization scrambled.
    """
    curves = load_curves(folder)
    found = effects(load_results(folder), manifest, controls, curves, chosen_learning_rates(folder), scrambled)
    parts = []
    for each in found:
        counted = successes(each, manifest["success"], curves)
        title = [f"**{point_label(each.point)}**"] if len(points(manifest)) > 1 else []
        text = success_table(counted).markdown() if counted.arms else f"no complete run with {each.metric.name} yet"
        parts.append("\n\n".join([*title, text]))
    return "\n\n".join(parts)


def success_table(found: Successes) -> Table:
    """Return how often and how soon every arm succeeds: a row per arm."""
    controls = {"control": "against its control", "scrambled": "against itself scrambled"}
    controls = {to: text for to, text in controls.items() if any(getattr(arm, to) for arm in found.arms)}
    with_times = any(arm.times for arm in found.arms)
    columns = ["arm", f"runs with {threshold_text(found)}", f"against {found.baseline}"]
    columns += controls.values()
    columns += ["steps until half have it"] if with_times else []
    rows = []
    for arm in found.arms:
        row = [Cell(arm.name, arm=arm.name), Cell(share_text(arm.share), interval_of_share(arm.share))]
        row.append(Cell("baseline") if arm.name == found.baseline else _contrast(arm.baseline))
        row += [_contrast(getattr(arm, to), name=True) for to in controls]
        row += [_times(arm.times)] if with_times else []
        rows.append(row)
    return Table(columns, rows)


def threshold_text(found: Successes) -> str:
    """Return what a run has to reach: ``test accuracy ≥ 95 %``."""
    sign = "≤" if found.metric.mode == "min" else "≥"
    return f"{found.metric.words} {sign} {found.threshold:g}{' %' if found.metric.factor == 100 else ''}"


def share_text(share: Share) -> str:
    """Return a count: ``3 of 5``."""
    return f"{share.count} of {share.runs}"


def interval_of_share(share: Share) -> str:
    """Return the exact interval of a share, in percent."""
    return f"{number(100 * share.low, 0)} to {number(100 * share.high, 0)} %"


def _contrast(found: Contrast | None, name: bool = False) -> Cell:
    if found is None:
        return Cell("")
    word = {True: "more often", False: "less often", None: "not told apart"}[found.is_gain]
    kind = {True: "gain", False: "loss", None: "open"}[found.is_gain]
    against = [f"against {found.reference}"] if name else []
    return Cell(word, ", ".join([*against, f"adjusted {p_text(found.adjusted)}"]), kind)


def _times(times: Times | None) -> Cell:
    if times is None:
        return Cell("")
    if math.isinf(times.median):
        return Cell("fewer than half succeed")
    ends = f"to {times.high:,.0f}" if math.isfinite(times.high) else "or more"
    return Cell(f"{times.median:,.0f}", f"{times.low:,.0f} {ends}")
