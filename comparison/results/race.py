"""A race for the best of many arms: seeds one by one, and after each the worse half leaves, until three are left.

What wins is only the best guess: that it is better than the reference is shown afterwards, on other seeds and the test
split. Given the same values a race asks for the same runs, which makes it resumable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from comparison.results.paired import paired_values

FEWEST_ARMS = 3  # beside the reference: these take all seeds

Train = Callable[[Sequence[str], int], Mapping[str, float]]  # arms, seed → arm → value; NaN where it failed or diverged


@dataclass(frozen=True)
class Race:
    """What a race found."""

    reference: str
    arms: list[str]  # in the race to its end, the best first; the reference is not among them
    gains: dict[str, float]  # arm → mean paired difference to the reference, above 0 where it is better
    seeds: dict[str, int]  # arm → how many it was trained with
    dropped: dict[str, str]  # arm → why, in the order in which they left

    @property
    def winner(self) -> str | None:
        """The best arm, if it looks better than the reference."""
        return self.arms[0] if self.arms and self.gains[self.arms[0]] > 0 else None


def race(arms: Sequence[str], reference: str, seeds: Sequence[int], train: Train, mode: str = "max") -> Race:
    """Race arms against each other, and each against the reference, by the values that ``train`` returns.

    Args:
        arms: what is raced, the reference among them or not.
        reference: what the winner is to replace; it is trained with every seed.
        seeds: one after another; all are taken unless every arm has failed.
        train: is called with the arms that are left and a seed.
        mode: ``"max"`` where more is better, ``"min"`` where less is.
    """
    left = [arm for arm in arms if arm != reference]
    values: dict[str, dict[int, float]] = {arm: {} for arm in (reference, *left)}
    gains, dropped = {reference: 0.0}, {}
    for seed in seeds:
        for arm, value in train([reference, *left], seed).items():
            values[arm][seed] = value
        for arm in [arm for arm in left if not math.isfinite(values[arm][seed])]:
            left.remove(arm)
            dropped[arm] = "it diverged or failed"
        base = {each: value for each, value in values[reference].items() if math.isfinite(value)}
        for arm in left:
            differences = paired_values(values[arm], base).values() if base else [math.inf]  # better than diverging
            mean = math.fsum(differences) / len(differences)
            gains[arm] = -mean if base and mode == "min" else mean
        left.sort(key=lambda arm: -gains[arm])
        kept = max(FEWEST_ARMS, math.ceil(len(left) / 2))
        dropped |= {arm: f"not among the best {kept} after seed {seed}" for arm in left[kept:]}
        left = left[:kept]
        if not left:
            break
    return Race(reference, left, gains, {arm: len(of) for arm, of in values.items()}, dropped)
