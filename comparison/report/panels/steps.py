"""The steps that every seed takes to the baseline's result."""

from __future__ import annotations

from comparison.report.data import ReportData
from comparison.report.registry import Piece, heading, note, register_panel, table
from comparison.results.effects import ArmResult, Effects
from comparison.results.tables import Cell, Table, decimals, target_text


@register_panel("Steps to the baseline’s result", label="Steps")
def steps(data: ReportData) -> list[Piece]:
    """Return a table per place of the grid, and how it is made."""
    shown: list[Piece] = []
    for found in data.effects:
        if found.target is None:
            continue
        if found.at_once:
            shown += [*heading(data.place_text(found.point)), note(_nothing(found))]
            continue
        seeds = sorted({seed for arm in found.arms if arm.reach for seed in arm.reach.steps})
        rows = [
            [Cell(arm.name, arm=arm.name), *(Cell(_steps(arm, seed)) for seed in seeds)]
            for arm in found.arms
            if arm.reach
        ]
        columns = ["arm", *(f"seed {seed}" for seed in seeds)]
        shown += [*heading(data.place_text(found.point)), table(data, Table(columns, rows)), note(_how(found))]
    return shown


def _nothing(found: Effects) -> str:
    return (
        f"Every run is at the target, {target_text(found, decimals(found))}, the mean of {found.baseline}’s final "
        "validation values, at its first evaluation. So the steps to it say nothing and are left out."
    )


def _how(found: Effects) -> str:
    baseline = next((arm for arm in found.arms if arm.name == found.baseline), None)
    split = (
        ": it is taken on the validation split, never on test" if found.metric.on_validation.startswith("val/") else ""
    )
    kept = ", of its seeds that did not diverge" if baseline is not None and baseline.diverged else ""
    return (
        f"The target, {target_text(found, decimals(found))}, is the mean of {found.baseline}’s final "
        f"{found.metric.on_validation.replace('/', ' ')}{kept}{split}. Curves are linear between evaluations. The "
        "speed-up above is the baseline’s steps divided by the arm’s, paired within a seed, as a geometric mean with a "
        "t interval of the logarithms; where the baseline’s own run does not reach the target, its whole length "
        "counts and the speed-up is a lower bound. Two seeds give no interval. The range beside "
        "the steps goes from the fewest to the most over the seeds; it is not a confidence interval."
    )


def _steps(arm: ArmResult, seed: int) -> str:
    if arm.reach is None or seed not in arm.reach.steps:
        return ""
    if seed in arm.diverged:
        return "diverged"
    found = arm.reach.steps[seed]
    return "not reached" if found is None else f"{found:,.0f}"
