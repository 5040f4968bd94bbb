"""How often a comparison that adds seeds until it is decided is wrong, and what it costs beside a fixed number.

    python -m benchmarks.sequential_decisions

Simulated differences of known mean, in units of their own standard deviation σ: normal, heavy-tailed (the difference of
two skewed outcomes, as of two arms alike), skewed, bimodal (all-or-nothing tasks) and bounded (accuracies near 1). The
rule is that of :func:`comparison.results.decisions.decide`, here for all paths at once; both are compared on a part.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sequential_page import page
from comparison.results.decisions import Question, decide
from comparison.results.metric import Metric
from comparison.results.power import pairs_for, smallest_effect
from comparison.results.sequential import critical_value, narrow_value
from structured_init.files import write_json, write_text

RESULTS = Path(__file__).parent / "results"
MOST = 40
KINDS = ("undecided", "better", "worse", "equivalent")
Draw = Callable[[np.random.Generator, int, int], np.ndarray]


# Differences ----------------------------------------------------------------------------------------------------------


def normal(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """Standard normal."""
    return rng.standard_normal((paths, seeds))


def heavy(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """The difference of two lognormal outcomes (σ = 1): what two arms alike have whose outcomes are skewed."""
    one, other = rng.lognormal(size=(2, paths, seeds))
    return _standard(other - one, 0.0, _lognormal(1) * 2**0.5)


def skewed(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """A lognormal difference (σ = 0.5, skewness 1.75): one arm has now and then a much better run."""
    return _standard(rng.lognormal(sigma=0.5, size=(paths, seeds)), np.exp(0.125), _lognormal(0.5))


def very_skewed(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """A lognormal difference (σ = 1, skewness 6.2)."""
    return _standard(rng.lognormal(size=(paths, seeds)), np.exp(0.5), _lognormal(1))


def bimodal(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """All or nothing: each run of either arm is solved in half of all seeds, with a noise of 2 %."""
    solved = rng.random((2, paths, seeds)) < 0.5
    noise = 0.02 * rng.standard_normal((2, paths, seeds))
    return _standard((solved + noise)[1] - (solved + noise)[0], 0.0, (0.5 + 2 * 0.02**2) ** 0.5)


def rare(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """All or nothing: each run of either arm fails in one of ten seeds, with a noise of 2 %."""
    failed = rng.random((2, paths, seeds)) < 0.1
    noise = 0.02 * rng.standard_normal((2, paths, seeds))
    return _standard((failed + noise)[1] - (failed + noise)[0], 0.0, (0.18 + 2 * 0.02**2) ** 0.5)


def bounded(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
    """Accuracies near 1: the logit of each arm's is normal with mean 4 and deviation 1, half of its variance shared."""
    shared = rng.standard_normal((paths, seeds))
    arms = [1 / (1 + np.exp(-4 - 0.5**0.5 * (shared + rng.standard_normal((paths, seeds))))) for _ in range(2)]
    return _standard(arms[1] - arms[0], 0.0, _bounded_deviation())


DISTRIBUTIONS: Mapping[str, Draw] = {
    each.__name__: each for each in (normal, heavy, skewed, very_skewed, bimodal, rare, bounded)
}


def one_fails(rate: float) -> Draw:
    """Return the difference of an arm that fails at a rate to one that never does, with a noise of 2 %; mean 0."""

    def draw(rng: np.random.Generator, paths: int, seeds: int) -> np.ndarray:
        noise = 0.02 * rng.standard_normal((2, paths, seeds))
        return (rng.random((paths, seeds)) < rate) - rate + noise[1] - noise[0]

    return draw


def _standard(values: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    return (values - mean) / deviation


def _lognormal(sigma: float) -> float:
    return float(np.sqrt((np.exp(sigma**2) - 1) * np.exp(sigma**2)))


@functools.cache
def _bounded_deviation() -> float:
    rng = np.random.default_rng(5)
    shared, one, other = rng.standard_normal((3, 4_000_000))
    first, second = (1 / (1 + np.exp(-4 - 0.5**0.5 * (shared + own))) for own in (one, other))
    return float(np.std(second - first))


# Decisions of all paths at once ---------------------------------------------------------------------------------------


def decisions(
    values: np.ndarray, question: Question, fewest: int | None = None, critical: Callable[[int], float] | None = None
) -> dict[str, np.ndarray]:
    """Return what is decided on each path and after how many seeds, with the interval of that moment.

    Args:
        values: differences (paths, seeds).
        question: what is asked.
        fewest: seeds before anything is decided; that of the question when None.
        critical: number of seeds → half width in standard errors; that of the question when None.
    """
    critical, fewest = critical or _critical(question), fewest or question.fewest
    n = np.arange(fewest, values.shape[1] + 1)
    mean = (np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1))[:, fewest - 1 :]
    squares = np.cumsum(values**2, axis=1)[:, fewest - 1 :]
    deviation = np.sqrt(np.maximum(squares - n * mean**2, 0.0) / (n - 1))
    half = np.array([critical(each) for each in n]) * deviation / np.sqrt(n)
    kind = np.zeros(mean.shape, dtype=int)
    if question.margin is not None:
        kind[np.abs(mean) > half] = 1
        kind[np.abs(mean) + half < question.margin] = 3
    else:
        kind[half <= question.precision] = 3
        kind[(half <= question.precision) & (np.abs(mean) > half)] = 1
    kind[(kind == 1) & (mean < 0)] = 2
    kind[half <= 1e-9] = 0
    at = np.where((kind > 0).any(axis=1), (kind > 0).argmax(axis=1), len(n) - 1)
    row = np.arange(len(values))
    return {"kind": kind[row, at], "seeds": n[at], "mean": mean[row, at], "half": half[row, at]}


def _critical(question: Question) -> Callable[[int], float]:
    if question.precision is not None:
        return lambda n: narrow_value(n, question.level)
    return lambda n: critical_value(n, question.horizon, question.level)


def _narrow(fewest: int) -> Callable[[int], float]:
    return lambda n: narrow_value(n, fewest=fewest)


def _mixture(prior: float) -> Callable[[int], float]:
    """Return the t confidence sequence of a normal prior on μ / σ, of this variance, in standard errors.

    Its e-value is the Bayes factor of Gönen et al. (American Statistician 59:252, 2005), a martingale whatever σ is
    (Wang & Ramdas, Anytime-valid t-tests and confidence sequences, 2024); the interval is where it is below 1 / 0.05.
    """

    def critical(n: int) -> float:
        w = 1 + n * prior
        a = (w / 0.05**2) ** (1 / n)
        return math.sqrt((n - 1) * (a - 1) / (1 - a / w)) if a < w else math.inf

    return critical


def _t(n: int) -> float:
    from scipy import stats

    return float(stats.t.isf(0.025, n - 1))


def rates(draw: Draw, effect: float, question: Question, paths: int, seed: int, **how: Any) -> dict[str, float]:
    """Return how often each decision is taken and the interval covers the truth, and the mean number of seeds."""
    values = draw(np.random.default_rng(seed), paths, MOST) + effect
    found = decisions(values, question, **how)
    shares = {kind: float(np.mean(found["kind"] == number)) for number, kind in enumerate(KINDS)}
    covered = np.abs(found["mean"] - effect) <= found["half"]
    return {**shares, "covers": float(covered.mean()), "seeds": float(found["seeds"].mean())}


def check(paths: int = 60) -> int:
    """Return on how many paths the rule of ``decide`` and that of this file were compared.

    Raises:
        AssertionError: they differ.
    """
    compared = 0
    for draw in (normal, bimodal):
        for question in (Question(margin=1.0), Question(precision=0.5)):
            values = draw(np.random.default_rng(3), paths, MOST) + 0.4
            found = decisions(values, question)
            for path, row in enumerate(values):
                one = decide(list(row), question, Metric("test/accuracy"))
                assert (one.kind, one.interval.samples) == (KINDS[found["kind"][path]], found["seeds"][path])
                compared += 1
    return compared


# The page -------------------------------------------------------------------------------------------------------------


def measure(paths: int) -> dict[str, Any]:
    """Return everything the page shows."""
    margin, precision = Question(margin=1.0), Question(precision=0.5)
    peeking, once = {"critical": _t}, {"critical": _t, "fewest": MOST}
    by_name: dict[str, Any] = {}
    for number, (name, draw) in enumerate(DISTRIBUTIONS.items()):
        seed = 100 * (number + 1)
        by_name[name] = {
            "null": rates(draw, 0.0, margin, paths, seed),
            "half": rates(draw, 0.5, margin, paths, seed + 1),
            "at_margin": rates(draw, 1.0, margin, paths, seed + 2),
            "below_zero": rates(draw, -0.3, margin, paths, seed + 3),
            "large": rates(draw, 2.0, margin, paths, seed + 4),
            "precision": rates(draw, 0.0, precision, paths, seed + 5),
            "wide_precision": rates(draw, 0.0, Question(precision=1.0), paths, seed + 6),
            "peeking": rates(draw, 0.0, Question(margin=1e-9), paths, seed + 7, **peeking),
            "looking": rates(draw, 0.0, Question(margin=1e-9), paths, seed + 7),
            "once": rates(draw, 0.0, Question(margin=1e-9), paths, seed + 7, **once),
            "fewest": {
                str(fewest): rates(draw, 0.0, precision, paths, seed + 5, fewest=fewest, critical=_narrow(fewest))
                for fewest in (5, 8, 10, 15)
            },
        }
    superiority = {
        str(effect): {**rates(normal, effect, Question(margin=1e-9), paths, 50), "fixed": _fixed(effect)}
        for effect in (0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
    }
    precisions = {
        str(width): {**rates(normal, 0.0, Question(precision=width), paths, 60), "fixed": pairs_for(1.0, width)}
        for width in (0.4, 0.5, 0.7, 1.0)
    }
    failing = {
        str(rate): rates(one_fails(rate), rate, Question(margin=0.05), paths, 70) for rate in (0.1, 0.2, 0.3, 0.5)
    }
    only_sign = Question(margin=1e-9)
    sequences = {
        name: {
            **{f"at_{n}": critical(n) if critical(n) < math.inf else None for n in (5, 10, 20, 40)},
            "false": rates(normal, 0.0, only_sign, paths, 80, critical=critical),
            "half": rates(normal, 0.5, only_sign, paths, 81, critical=critical),
            "one": rates(normal, 1.0, only_sign, paths, 82, critical=critical),
        }
        for name, critical in {
            "group-sequential (ours)": _critical(only_sign),
            **{f"t mixture, prior variance {prior:g}": _mixture(prior) for prior in (0.25, 1.0, 3.0)},
        }.items()
    }
    known = {
        "by_distribution": by_name,
        "power": superiority,
        "precision": precisions,
        "one_fails": failing,
        "sequences": sequences,
    }
    return {"paths": paths, "most": MOST, **known}


def _fixed(effect: float) -> int:
    """Return the seeds at which a t test sees an effect with 80 % power."""
    return next(n for n in range(2, 1000) if smallest_effect(1.0, n) <= effect)


def main() -> None:
    """Measure, and write the record and its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    begin = time.process_time()
    found = {**measure(options.paths), "compared_with_decide": check()}
    found["cpu_seconds"] = round(time.process_time() - begin, 1)
    write_json(options.output / "sequential_decisions.json", found)
    write_text(options.output / "sequential_decisions.md", page(found))
    print(page(found))


if __name__ == "__main__":
    main()
