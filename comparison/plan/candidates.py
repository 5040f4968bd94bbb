"""What ``find`` races: the shipped initializations that fit the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.plan.experiment import parse, values_of
from comparison.plan.fitting import Planner, solvers
from structured_init.presets import preset_names
from structured_init.util.errors import StructuredInitError


def automatic(comparison: Comparison, further: Sequence[str]) -> tuple[Comparison, dict[str, str]]:
    """Return a comparison with every candidate that fits its network, and why others do not; nothing is written."""
    planner = Planner(comparison, values_of(parse([*comparison.configurations(), *comparison.arguments])), further)
    planner.build_points()
    arms, left_out = dict(comparison.arms), {}
    for arm in parse_arms(",".join(preset_names())).values():
        if arm.label in arms:
            continue
        try:
            changes, initializer = planner.read(arm)
            steps = max((each.iterations for each in solvers(initializer)), default=0)
            [report] = planner.plan(arm, initializer)
        except StructuredInitError as error:
            left_out[arm.label] = str(error).removeprefix(f"initialization '{arm.label}': ")
            continue
        if steps:
            left_out[arm.label] = f"its solver takes {steps:,} steps in every run: name it in --among"
        elif report is None:
            left_out[arm.label] = "it needs samples of the data, or a network that is built late: name it in --among"
        elif not report.changed:
            left_out[arm.label] = "it changes nothing here"
        else:
            arms[arm.label] = dataclasses.replace(arm, changes=changes)
    return dataclasses.replace(comparison, arms=arms), left_out
