"""One learning rate per initialization, chosen on the validation split: the two belong together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from comparison.results.folder import Choices, Run, choice_name
from comparison.run.comparison import Comparison
from structured_init.util.errors import StructuredInitError


def choose(comparison: Comparison, runs: Sequence[Run]) -> Choices:
    """Choose the learning rate of every point and initialization: the best mean over seeds of final validation values.

    The test split plays no part. A learning rate at which a seed failed, or ended in no number, is not chosen; one
    that shares the best mean with another gives way to the smaller of them. A run that is not complete has failed.
    """
    choices: Choices = {}
    sign = 1 if comparison.mode == "max" else -1
    for point in comparison.points():
        arms = choices.setdefault(choice_name(point), {})
        for arm in comparison.arms:
            values = {
                rate: [
                    _final(run.latest(), comparison.validation_metric)
                    for run in runs
                    if (run.arm, run.point, run.learning_rate) == (arm, point, rate)
                ]
                for rate in sorted(comparison.learning_rates)
            }
            means = {
                rate: sign * math.fsum(each) / len(each)
                for rate, each in values.items()
                if each and all(value is not None and math.isfinite(value) for value in each)
            }
            arms[arm] = {
                "chosen": max(means, key=lambda rate: means[rate]) if means else None,
                "validation": {repr(rate): each for rate, each in values.items()},
            }
    return choices


def chosen_runs(choices: Choices, runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the chosen learning rates, now to be tested."""
    return [
        dataclasses.replace(run, tested=True)
        for run in runs
        if choices[choice_name(run.point)][run.arm]["chosen"] == run.learning_rate
    ]


def _final(run: Run, metric: str) -> float | None:
    """Return a run's final validation value, ``None`` for a run that is not complete."""
    if run.result is None:
        return None
    if metric not in run.result["metrics"]:
        raise StructuredInitError(
            f"a learning rate is chosen by '{metric}', which '{run.name}' did not log: is there a validation split?"
        )
    return run.result["metrics"][metric]
