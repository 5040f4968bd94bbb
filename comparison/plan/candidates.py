"""What ``find`` races: shipped initializations that fit the network, each with a few of its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from comparison.plan.arms import Arm, parse_arms
from comparison.plan.comparison import Comparison
from comparison.plan.experiment import parse, values_of
from comparison.plan.planner import Planner, solvers
from lightning_modules.cli.configurations import shipped_configs
from structured_init.util.errors import StructuredInitError

# Arguments beside those that an initialization is shipped with: half its strength, one of its parts, another kernel.
HALF = "qk_alpha=0.35,qk_beta=0.35,vo_alpha=0.2,vo_beta=0.2"
VARIANTS: Mapping[str, Mapping[str, str]] = {
    "sincos": {"half": "gain=0.5"},
    "mimetic": {"half": HALF, "query_key": "value_output=false", "value_output": "query_key=false"},
    "mimetic_language": {"half": HALF, "query_key": "value_output=false"},
    "impulse": {"5": "kernel_size=5"},
    "covariance": {"trace": "normalize=trace"},
    "filters_random": {"impulse": "filters=impulse", "box": "filters=box", "gaussian": "filters=gaussian"},
    "mimetic_state_space": {"no_correlate": "correlate=false", "no_convolution": "convolution=false"},
}


def automatic(comparison: Comparison, further: Sequence[str]) -> tuple[Comparison, dict[str, str]]:
    """Return a comparison with every candidate that fits its network, and why others do not; nothing is written."""
    planner = Planner(comparison, values_of(parse([*comparison.configurations(), *comparison.arguments])), further)
    planner.build_points()
    arms, changes, left_out = dict(comparison.arms), dict(comparison.changes), {}
    for arm in _entries():
        if arm.label in arms:
            continue
        try:
            changed, initializer = planner.read(arm)
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
            arms[arm.label], changes[arm.label] = arm, changed
    return dataclasses.replace(comparison, arms=arms, changes=changes), left_out


def _entries() -> list[Arm]:
    """Return the shipped initializations, then their variants."""
    names = [name.removeprefix("init/") for name in shipped_configs() if name.startswith("init/")]
    entries = list(names)
    for name in names:
        for label, arguments in VARIANTS.get(name, {}).items():
            entries.append(f"{name}_{label}={name}{{{arguments}}}")
    return [arm for entry in entries for arm in parse_arms(entry).values()]
