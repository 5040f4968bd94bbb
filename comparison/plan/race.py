"""A race for the best of many arms: seeds one by one, and after each the worse half leaves, until three are left.

What wins is only the best guess: that it is better than the reference is shown afterwards, on other seeds and the test
split. Given the same values a race drops the same arms, which makes it resumable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from comparison.intervals import Values, paired_values

FEWEST_ARMS = 3  # beside the reference: these take all seeds


def gains_of(values: Mapping[str, Values], reference: str, mode: str) -> dict[str, float]:
    """Return the mean paired gain of each arm over the reference, the best first; above 0 an arm is better.

    It is infinite where the reference diverged in every seed; an arm that diverged or failed in any has none.
    """
    base = {seed: value for seed, value in values[reference].items() if math.isfinite(value)}
    sign = 1 if mode == "max" else -1
    gains = {}
    for arm, of_arm in values.items():
        if arm != reference and all(map(math.isfinite, of_arm.values())):
            differences = paired_values(of_arm, base).values() if base else [sign * math.inf]
            gains[arm] = sign * math.fsum(differences) / len(differences)
    return dict(sorted(gains.items(), key=lambda each: -each[1]))


def best_half(gains: Mapping[str, float]) -> list[str]:
    """Return the arms that go on, of gains with the best first."""
    kept = max(FEWEST_ARMS, math.ceil(len(gains) / 2))
    return [*gains][:kept]
