"""Whether the results of a comparison differ at all, and whether its means are over the same seeds."""

from __future__ import annotations

from comparison.results.effects import Effects
from comparison.results.paired import are_equal


def all_equal(found: Effects) -> float | None:
    """Return the value that all final results of at least two arms share, but for rounding; None where they differ."""
    arms = [arm for arm in found.arms if arm.by_seed]
    values = [value for arm in arms for value in arm.by_seed.values()]
    if len(arms) < 2 or any(arm.diverged or arm.no_rate for arm in found.arms):
        return None
    return values[0] if are_equal(values, max(map(abs, values))) else None


def fewer_seeds(found: Effects) -> dict[str, str]:
    """Return arm → ``2 of 5 seeds``, of the arms that lack seeds which others have; empty where all have the same."""
    seeds = {arm.name: {*arm.by_seed, *arm.diverged} for arm in found.arms if arm.by_seed or arm.diverged}
    every = set().union(*seeds.values())
    return {arm: f"{len(own)} of {len(every)} seeds" for arm, own in seeds.items() if own != every}
