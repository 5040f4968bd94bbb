"""What ``find`` races: shipped initializations that fit the network, each with a few of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from comparison.run.arms import Arm, parse_arms
from comparison.run.comparison import Comparison
from comparison.run.prepare import Plans, with_arm
from comparison.run.resolve import build, parse, values_of
from lightning_modules.cli.configurations import shipped_configs
from lightning_modules.cli.show import solvers
from structured_init.hosts import attention_sites
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
FIRST_HALF = ("mimetic", "mimetic_language", "impulse")  # raced there alone too


def automatic(comparison: Comparison, further: list[str]) -> tuple[Comparison, dict[str, str]]:
    """Add every candidate to a comparison that fits its network; nothing is written."""
    values = values_of(parse([*comparison.configurations(), *comparison.arguments]))
    first, *_ = comparison.arms.values()
    built = build([*comparison.arm_arguments(first), *further])
    layers = [site.name for site in attention_sites(built.model)]
    place, *_ = comparison.points()
    plans, left_out = Plans(comparison, {place: built}, further), {}
    for arm in _entries(layers[: len(layers) // 2]):
        if arm.label in comparison.arms:
            continue
        why, added = _fits(comparison, arm, values, plans)
        if why:
            left_out[arm.label] = why
        else:
            comparison = added
    return comparison, left_out


def _entries(first_half: list[str]) -> Iterator[Arm]:
    """Yield the shipped initializations, then their variants."""
    names = [name.partition("/")[2] for name in shipped_configs() if name.startswith("init/")]
    for name in names:
        yield from parse_arms(name).values()
    for name in names:
        for label, arguments in VARIANTS.get(name, {}).items():
            yield from parse_arms(f"{name}_{label}={name}{{{arguments}}}").values()
        if name in FIRST_HALF and first_half:
            yield from parse_arms(f"{name}_first_half={name}{{where=[{','.join(first_half)}]}}").values()


def _fits(comparison: Comparison, arm: Arm, values: Mapping[str, Any], plans: Plans) -> tuple[str, Comparison]:
    """Return why an arm is left out, empty where it fits, and the comparison with it."""
    try:
        comparison, initializer = with_arm(comparison, arm, values)
        if steps := max((each.iterations for each in solvers(initializer)), default=0):
            return f"its solver takes {steps:,} steps in every run: name it in --among", comparison
        [report] = plans.plan(comparison, arm.label, initializer)
    except StructuredInitError as error:
        return str(error).removeprefix(f"initialization '{arm.label}': "), comparison
    if report is None:
        return "it needs samples of the data, or a network that is built late: name it in --among", comparison
    if not report.changed:
        return "it changes nothing here", comparison
    return "", comparison
