"""A race for the best of many arms: seeds one by one, and after each the worse half leaves, until three are left.

What wins is only the best guess: that it is better than the reference is shown afterwards, on other seeds and the test
split. Given the same values a race drops the same arms, which makes it resumable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from comparison.intervals import paired_values

FEWEST_ARMS = 3  # beside the reference: these take all seeds


class Race:
    """Which arms are left of a race, and what they gain over the reference.

    Args:
        arms: what is raced, the reference among them or not.
        reference: what the winner is to replace; it takes every seed.
        mode: ``"max"`` where more is better, ``"min"`` where less is.
    """

    def __init__(self, arms: Iterable[str], reference: str, mode: str = "max") -> None:
        self.reference, self.mode = reference, mode
        self.left = [arm for arm in arms if arm != reference]  # the best first, after a seed
        self.values: dict[str, dict[int, float]] = {arm: {} for arm in (reference, *self.left)}  # by seed
        self.gains = {reference: 0.0}  # mean paired difference to the reference, above 0 where an arm is better
        self.dropped: dict[str, str] = {}  # why, in the order in which they left

    def take(self, seed: int, values: Mapping[str, float]) -> None:
        """Take the values of a seed, of the reference and all that are left, NaN where one failed; drop what loses."""
        for arm, value in values.items():
            self.values[arm][seed] = value
        for arm in list(self.left):
            if not math.isfinite(values[arm]):
                self.left.remove(arm)
                self.dropped[arm] = "it diverged or failed"
        for arm in self.left:
            self.gains[arm] = self._gain(arm)
        self.left.sort(key=lambda arm: -self.gains[arm])
        kept = max(FEWEST_ARMS, math.ceil(len(self.left) / 2))
        for arm in self.left[kept:]:
            self.dropped[arm] = f"not among the best {kept} after seed {seed}"
        del self.left[kept:]

    def _gain(self, arm: str) -> float:
        base = {seed: value for seed, value in self.values[self.reference].items() if math.isfinite(value)}
        if not base:
            return math.inf  # better than diverging
        differences = paired_values(self.values[arm], base).values()
        mean = math.fsum(differences) / len(differences)
        return mean if self.mode == "max" else -mean

    @property
    def seeds(self) -> dict[str, int]:
        """How many seeds each arm was trained with."""
        return {arm: len(values) for arm, values in self.values.items()}

    @property
    def winner(self) -> str | None:
        """The best arm, if it looks better than the reference."""
        return self.left[0] if self.left and self.gains[self.left[0]] > 0 else None
