"""What differs in attention and weights, and whether it goes with the result over arms and seeds.

Spearman's rank correlation of a quantity with the result, both without the mean of their seed. Runs of an arm resemble
each other, so arms are permuted as a whole; and of many quantities one goes with anything, so each is compared with the
largest correlation of all of them (Westfall and Young 1993, the largest statistic). With fewer than five arms no
permutation is rare enough to say anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from comparison.report.depth import MOMENTS, mean_over_heads
from comparison.results.run_record import RunRecord, read_json

FEWEST_ARMS = 5
MOST_PERMUTATIONS = 5000
WORDS = {  # file of a run → quantity → what it is in a sentence
    "attention/statistics.json": {
        "mean_distance": "mean distance of attention",
        "normalised_entropy": "entropy of attention",
        "diagonal_mass": "attention to itself",
        "impulse_mass": "attention on the best offset",
        "effective_rank": "rank of attention",
    },
    "weight_products/summary.json": {
        "query_key_diagonal": "diagonal of the query–key product",
        "value_output_diagonal": "diagonal of the value–output product",
    },
}

Quantity = tuple[str, str]  # what it is, and when: before or after training
Values = dict[Quantity, dict[tuple[str, int], float]]  # → (arm, seed) → mean over layers and heads


@dataclass(frozen=True)
class Tie:
    """How a quantity goes with the result.

    Attributes:
        quantity: what, and when.
        correlation: Spearman's, over arms and seeds.
        p_value: among all quantities.
        tested: how many there were.
        arms: how many there were.
    """

    quantity: Quantity
    correlation: float
    p_value: float
    tested: int
    arms: int


def quantities(runs: Iterable[RunRecord]) -> Values:
    """Return what runs wrote of their attention and weight products, those quantities that every run has."""
    found: Values = {}
    runs = list(runs)
    for run in runs:
        for name, words in WORDS.items():
            path = run.folder / name
            for moment, layers in (read_json(path) if path.is_file() else {}).items():
                for key, word in words.items():
                    values = [mean_over_heads(layer[key]) for layer in layers.values() if key in layer]
                    if moment in MOMENTS and values and np.isfinite(values).all():
                        found.setdefault((word, moment), {})[run.arm, run.seed] = float(np.mean(values))
    return {quantity: values for quantity, values in found.items() if len(values) == len(runs)}


def strongest_tie(known: Values, result: Mapping[tuple[str, int], float]) -> Tie | None:
    """Return the quantity that goes with the result most; None with fewer than five arms, or nothing to correlate.

    Args:
        known: as ``quantities`` gives them.
        result: (arm, seed) → final value; arms and seeds that all of them have are used.
    """
    from scipy import stats

    arms = list(dict.fromkeys(arm for arm, _ in result))
    seeds = [s for s in dict.fromkeys(seed for _, seed in result) if all((arm, s) in result for arm in arms)]
    tables = {
        quantity: np.array([[values.get((arm, seed), math.nan) for seed in seeds] for arm in arms])
        for quantity, values in known.items()
    }
    tables = {q: t for q, t in tables.items() if np.isfinite(t).all() and np.ptp(t.mean(1)) > 1e-9 * np.abs(t).max()}
    if len(arms) < FEWEST_ARMS or not seeds or not tables:
        return None
    ranks = np.array([_standard(stats.rankdata(_within(table))) for table in tables.values()])  # (quantities, runs)
    final = _standard(stats.rankdata(_within(np.array([[result[arm, seed] for seed in seeds] for arm in arms]))))
    final = final.reshape(len(arms), len(seeds))
    permuted = np.array([final[list(order)].ravel() for order in _orders(len(arms))])  # the first is as observed
    correlations = permuted @ ranks.T
    largest = np.abs(correlations).max(1)
    best = int(np.abs(correlations[0]).argmax())
    p_value = float((largest >= largest[0] - 1e-9).mean())
    return Tie(list(tables)[best], float(correlations[0, best]), p_value, len(tables), len(arms))


def largest_difference(known: Values, arm: str, baseline: str) -> tuple[Quantity, float, float] | None:
    """Return the quantity that differs most, as a share of its size, with its means of the arm and of the baseline."""
    best, share = None, 0.0
    for quantity, values in known.items():
        ours, theirs = ([v for (name, _), v in values.items() if name == which] for which in (arm, baseline))
        if not ours or not theirs:
            continue
        one, other = float(np.mean(ours)), float(np.mean(theirs))
        relative = abs(one - other) / max(abs(one) + abs(other), 1e-12)
        apart = min(ours) > max(theirs) or max(ours) < min(theirs)  # in every run, not in the mean alone
        if apart and relative > share:
            best, share = (quantity, one, other), relative
    return best


def _within(table: np.ndarray) -> np.ndarray:
    """Return (arms, seeds) without what a seed's runs share."""
    return table - table.mean(0)


def _standard(ranks: np.ndarray) -> np.ndarray:
    """Return ranks whose products sum to a correlation."""
    centred = ranks.ravel() - ranks.mean()
    return centred / max(float(np.linalg.norm(centred)), 1e-12)


def _orders(arms: int) -> Iterable[tuple[int, ...]]:
    """Yield orders of the arms, the given one first: all of them, or as many as are drawn."""
    if math.factorial(arms) <= MOST_PERMUTATIONS:
        yield from itertools.permutations(range(arms))
        return
    rng = np.random.default_rng(0)
    yield tuple(range(arms))
    yield from (tuple(rng.permutation(arms)) for _ in range(MOST_PERMUTATIONS))
