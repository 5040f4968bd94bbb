"""Intervals that may be looked at after every further seed, and still cover the truth as often as they say.

Student's t is made for one look. Who looks after every seed from the 5th to the 40th, and stops as soon as it excludes
zero, finds an effect in a quarter of comparisons without one. Two rules of stopping, two intervals:

- *Stop once the sign, or equivalence, is known*: a group-sequential boundary. At n pairs the difference counts as far
  from zero where its p value is below that of a standard normal beyond ``c (n / horizon)^(Δ − 1/2)``, Δ = 0.4, the
  family of Wang & Tsiatis (Biometrics 43:193, 1987), put into significance levels as Pocock (Biometrika
  64:191, 1977) does for an unknown variance. ``c`` is found such that the intervals of all looks together cover the
  truth at the level asked for (repeated confidence intervals: Jennison & Turnbull, JRSS B 51:305, 1989).
- *Stop once the interval is narrow*: fixed width (Chow & Robbins, Ann. Math. Statist. 36:457, 1965). Of normal values
  the width says nothing about the mean, so Student's t needs no more than a somewhat higher level: the rule stops
  where a deviation came out small by chance.

Both constants come from simulated normal values with a seed of their own. They hold for any mean and variance, since t
depends on neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from comparison.results.paired import Interval, interval_around

if TYPE_CHECKING:
    import numpy as np

FEWEST = 5  # pairs before a sign or equivalence is decided
FEWEST_NARROW = 8  # before a narrow interval counts: from 5 on skewed values are covered less, normal ones need more
SHAPE = -0.1  # Wang and Tsiatis' Δ − 1/2
LATER = 0.1  # the share of all errors that is kept for looks beyond the horizon
PATHS = 40_000  # simulated for a horizon of up to 40; more seeds take fewer, 5,000 at least
VALUES = 3_200_000  # simulated in all
COUNTED = 100  # paths beyond a boundary, below which their number is not counted
ANCHOR, STEEPER = 4 * COUNTED, 1.15  # beyond: the independent looks at ANCHOR times this; 1.1 was measured at 4.2


def looking_interval(values: Sequence[float], horizon: int, level: float = 0.95) -> Interval:
    """Return the interval that holds at every look at once: all of them, from the 5th value on, cover the truth.

    It is narrowest at ``horizon`` values, which is fixed before the first look. Looks beyond it are valid too: a tenth
    of the errors is kept for them. ``level`` is that of all looks together; below 5 values there are no ends.
    """
    critical = critical_value(len(values), horizon, level) if len(values) >= FEWEST else math.inf
    return interval_around(values, critical)


def narrow_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the interval for a rule that stops once it is narrow, whatever it covers; without ends below 8 values.

    ``level`` is that of the interval at which the rule stops, whatever width it waits for.
    """
    critical = narrow_value(len(values), level) if len(values) >= FEWEST_NARROW else math.inf
    return interval_around(values, critical)


@cache
def critical_value(n: int, horizon: int, level: float = 0.95) -> float:
    """Return how many standard errors ``looking_interval`` reaches to each side at n values."""
    from scipy import stats

    block = _block(n, horizon)
    z = _scale(block, horizon, level) * (n / horizon) ** SHAPE
    return float(stats.t.isf(stats.norm.sf(z), n - 1))


@cache
def narrow_value(n: int, level: float = 0.95) -> float:
    """Return how many standard errors ``narrow_interval`` reaches to each side at n values, 8 at least."""
    from scipy import stats

    return float(stats.t.isf(_narrow_tail(level), n - 1))


def _block(n: int, horizon: int) -> int:
    """Return 0 up to the horizon, k up to 2ᵏ times the horizon: each block has a share of the errors."""
    return max(0, math.ceil(math.log2(n / horizon) - 1e-12))


def _share(block: int, level: float) -> float:
    """Return the probability of an error that a block may have: 0.9, 0.05, 0.025, … of all."""
    return (1 - level) * (LATER * 0.5**block if block else 1 - LATER)


@cache
def _scale(block: int, horizon: int, level: float) -> float:
    """Return c, such that no look before and a look of this block errs with the block's share of probability."""
    import numpy as np

    highest = _highest(block, horizon)
    kept = np.ones(len(highest[0]), dtype=bool)
    for earlier in range(block):
        kept &= highest[earlier] <= _scale(earlier, horizon, level)
    errors = _share(block, level) * len(kept)
    found = np.sort(highest[block][kept])[::-1]
    if errors >= COUNTED:
        return float(found[min(int(errors), len(found) - 1)])
    # Farther out than can be counted: the looks together err as often as some number of independent ones.
    from scipy import stats

    independent = ANCHOR / len(kept) / (2 * stats.norm.sf(found[ANCHOR]))
    return float(stats.norm.isf(_share(block, level) / (2 * STEEPER * independent)))


@cache
def _highest(block: int, horizon: int) -> list[np.ndarray]:
    """Return, for each block up to one, the largest ``|z| (n / horizon) ** 0.1`` of simulated values without an effect.

    z is the standard normal with the p value of Student's t at n values.
    """
    import numpy as np
    from scipy import special

    rng = np.random.default_rng(20)
    last = horizon * 2**block
    paths = min(max(VALUES // last, 5_000), PATHS)
    total, squares = np.zeros(paths), np.zeros(paths)
    found = [np.zeros(paths) for _ in range(block + 1)]
    for n in range(1, last + 1):
        drawn = rng.standard_normal(paths)
        total += drawn
        squares += drawn**2
        if n < FEWEST:
            continue
        error = np.sqrt((squares - total**2 / n) / (n - 1) / n)
        z = -special.ndtri(special.stdtr(n - 1, -np.abs(total / n) / error))
        np.maximum(found[_block(n, horizon)], z * (n / horizon) ** -SHAPE, out=found[_block(n, horizon)])
    return found


@cache
def _narrow_tail(level: float) -> float:
    """Return the tail of Student's t at which a rule of fixed width covers the truth at the level, at its worst width.

    The mean of normal values does not depend on their deviations, so that a rule that stops by the deviations after N
    values covers the truth with probability ``E[2 Φ(t_N s_N / σ) − 1]``: no mean is simulated.
    """
    import numpy as np
    from scipy import optimize, special, stats

    rng, most = np.random.default_rng(21), 60
    n = np.arange(FEWEST_NARROW, most + 1)
    deviations = rng.standard_normal((PATHS // 4, most - 1)) ** 2  # n values have n − 1 of them, by Helmert
    spread = np.sqrt(np.cumsum(deviations, axis=1)[:, FEWEST_NARROW - 2 :] / (n - 1))
    widths = 1.96 / np.sqrt([4, 6, 8, 10, 13, 16, 20, 26, 32])  # in standard deviations

    def shortfall(tail: float) -> float:
        critical = stats.t.isf(tail, n - 1)
        half = critical * spread / np.sqrt(n)
        worst = 1.0
        for width in widths:
            narrow = half <= width
            at = np.where(narrow.any(axis=1), narrow.argmax(axis=1), len(n) - 1)
            reached = critical[at] * np.take_along_axis(spread, at[:, None], axis=1)[:, 0]
            worst = min(worst, float(np.mean(2 * special.ndtr(reached) - 1)))
        return worst - level

    tail = (1 - level) / 2
    return float(optimize.brentq(shortfall, 0.02 * tail, tail, xtol=1e-3 * tail))
