"""What ``find`` races: shipped initializations that fit the network, each with a few of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from comparison.run.arms import Arm, parse_arms
from comparison.run.comparison import Comparison
from comparison.run.prepare import Plans, with_arm
from comparison.run.resolve import build, parse, values_of
from lightning_modules.cli.configurations import shipped_configs
from lightning_modules.cli.show import solvers
from structured_init.errors import StructuredInitError
from structured_init.hosts import attention_sites, depthwise_conv_sites, state_space_sites

# Arguments beside those that an initialization is shipped with: half its strength, one of its parts, another kernel.
HALF = "qk_alpha=0.35,qk_beta=0.35,vo_alpha=0.2,vo_beta=0.2"
VARIANTS: Mapping[str, Mapping[str, str]] = {
    "sincos": {"half": "gain=0.5"},
    "mimetic_host": {"half": HALF, "query_key": "value_output=false", "value_output": "query_key=false"},
    "mimetic_language": {"half": HALF, "query_key": "value_output=false"},
    "impulse": {"5": "kernel_size=5"},
    "covariance": {"trace": "normalize=trace"},
    "filters_random": {"impulse": "filters=impulse", "box": "filters=box", "gaussian": "filters=gaussian"},
    "mimetic_state_space": {"no_correlate": "correlate=false", "no_convolution": "convolution=false"},
}
# What has helped on a kind of network under an optimizer, and what was worse there: what a short budget tries first and
# last. Each is an initialization and the row of docs/claims_runs.md that shows it, larger gains over the default first.
PRIOR: Mapping[tuple[str, str], tuple[Mapping[str, str], Mapping[str, str]]] = {
    ("images", "AdamW"): (
        {
            "separable": "separable_digits",
            "codes": "separable_digits",
            "mimetic_host": "mimetic_vit_digits",
            "sincos": "mimetic_vit_digits",
            "patch_whitening": "patch_whitening_cifar10",
            "impulse": "impulse_vit_cifar10",
        },
        {},
    ),
    ("images", "Muon"): ({}, {"mimetic_host": "mimetic_modern_digits"}),
    ("text", "AdamW"): ({"previous_token": "previous_token_shakespeare"}, {"mimetic_language": "mimetic_language_gpt"}),
    ("text", "Muon"): ({"uniform_projections": "uniform_projections_modern_characters"}, {}),
    ("state space", "AdamW"): ({"mimetic_state_space": "mamba2_recall"}, {}),
    ("convolutions", "AdamW"): ({"covariance": "covariance_convmixer"}, {}),
}
FIRST_HALF = ("mimetic_host", "mimetic_language", "impulse")  # raced there alone too


def automatic(comparison: Comparison, further: list[str]) -> tuple[Comparison, dict[str, str]]:
    """Add every candidate to a comparison that fits its network; nothing is written."""
    values = values_of(parse([*comparison.configurations(), *comparison.arguments]))
    first, *_ = comparison.arms.values()
    built = build([*comparison.arm_arguments(first), *further])
    layers = [site.name for site in attention_sites(built.model)]
    place, *_ = comparison.points()
    plans, left_out = Plans(comparison, {place: built}, further), {}
    optimizer = str(values.get("model.optimizer.class_path")).rpartition(".")[2]
    for arm in in_order(_entries(layers[: len(layers) // 2]), kind_of(built.model), optimizer):
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


def kind_of(model: nn.Module) -> str:
    """Return the kind of a network, as ``PRIOR`` names it; empty for one that it does not know."""
    if sites := attention_sites(model):
        return "images" if any(site.grid for site in sites) else "text"
    if state_space_sites(model):
        return "state space"
    return "convolutions" if depthwise_conv_sites(model) else ""


def in_order(arms: Iterable[Arm], kind: str, optimizer: str) -> list[Arm]:
    """Return candidates in the order in which they are tried, each behind what is likelier to be better.

    What has helped on such networks comes first, then what has helped on them under another optimizer, what was not
    tried, and what was worse; variants behind the initializations of their group.
    """
    helped, worse = PRIOR.get((kind, optimizer), ({}, {}))
    elsewhere = [name for (other, _), (names, _) in PRIOR.items() if other == kind for name in names]

    def place(arm: Arm) -> tuple[int, bool, int]:
        groups = (list(helped), elsewhere)
        known = next((number for number, names in enumerate(groups) if arm.init in names), 2)
        group = 3 if arm.init in worse else known
        return group, arm.label != arm.init, groups[group].index(arm.init) if group < 2 else 0

    return sorted(arms, key=place)


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
