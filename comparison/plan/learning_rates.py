"""One learning rate per initialization, chosen on the validation split: the two belong together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from comparison.plan.comparison import Comparison
from comparison.runs.folder import Choices, Run, choice_name
from comparison.runs.metric import Metric


def choose(comparison: Comparison, runs: Sequence[Run]) -> Choices:
    """Choose the learning rate of every point and initialization: the best mean over seeds of final validation values.

    The test split plays no part. A learning rate at which a seed failed, or ended in no number, is not chosen; one
    that shares the best mean with another gives way to the smaller of them. A run that is not complete has failed.
    """
    choices: Choices = {}
    metric = Metric(comparison.metric).on_validation
    for run in sorted(runs, key=lambda run: run.learning_rate or 0.0):
        latest = run.latest()
        of_point = choices.setdefault(choice_name(run.point), {})
        of_arm = of_point.setdefault(run.arm, {"chosen": None, "validation": {}})
        of_rate = of_arm["validation"].setdefault(repr(run.learning_rate), [])
        of_rate.append(latest.metric(metric) if latest.result else None)
    for arms in choices.values():
        for choice in arms.values():
            choice["chosen"] = _best(choice["validation"], comparison.mode)
    return choices


def _best(validation: dict[str, list[float | None]], mode: str) -> float | None:
    """Return the rate with the best mean; None where every one has a value that is no number."""
    means = {}
    for rate, finals in validation.items():
        mean = math.nan if None in finals else math.fsum(finals) / len(finals)
        if math.isfinite(mean):
            means[float(rate)] = mean if mode == "max" else -mean
    return max(means, key=lambda rate: means[rate], default=None)


def chosen_runs(choices: Choices, runs: Iterable[Run]) -> list[Run]:
    """Return the runs of the chosen learning rates, now to be tested."""
    return [
        dataclasses.replace(run, tested=True)
        for run in runs
        if choices[choice_name(run.point)][run.arm]["chosen"] == run.learning_rate
    ]
