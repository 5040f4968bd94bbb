"""One learning rate per initialization, chosen on the validation split: the two belong together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from comparison.results.records import choice_name
from comparison.results.run_record import read_json
from comparison.run.plan import Comparison
from comparison.run.run import Run
from structured_init.errors import StructuredInitError
from structured_init.files import write_json

Choices = dict[str, dict[str, dict[str, Any]]]


def choose(comparison: Comparison, runs: Sequence[Run]) -> Choices:
    """Choose the learning rate of every point and initialization: the best mean over seeds of final validation values.

    The test split plays no part. A learning rate at which a seed failed, or ended in no number, is not chosen; one
    that shares the best mean with another gives way to the smaller of them.

    Args:
        comparison: what is compared.
        runs: all of its runs; those that are not complete count as failed.

    Returns:
        Point → initialization → ``chosen``, which is ``None`` where every learning rate has failed, and the final
        validation values per learning rate and seed.

    Raises:
        StructuredInitError: complete runs have logged no such value.
    """
    choices: Choices = {}
    sign = 1 if comparison.mode == "max" else -1
    for point in comparison.points():
        arms = choices.setdefault(choice_name(point), {})
        for arm in comparison.arms:
            values = {
                rate: [_final(run, comparison.validation_metric) for run in runs if _is(run, arm, point, rate)]
                for rate in sorted(comparison.learning_rates)
            }
            means = {rate: sign * math.fsum(each) / len(each) for rate, each in values.items() if _all_finite(each)}
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
        if choices[choice_name(run.settings["point"])][run.settings["arm"]]["chosen"] == run.settings["learning_rate"]
    ]


def write_choices(comparison: Comparison, choices: Choices) -> None:
    """Write ``learning_rates.json``; what it says of other points and initializations stays."""
    path = comparison.folder / "learning_rates.json"
    known: Choices = read_json(path) if path.is_file() else {}
    merged = {point: {**known.get(point, {}), **choices.get(point, {})} for point in {**known, **choices}}
    write_json(path, merged)


def _is(run: Run, arm: str, point: dict[str, str], rate: float) -> bool:
    settings = run.settings
    return (settings["arm"], settings["point"], settings["learning_rate"]) == (arm, point, rate)


def _final(run: Run, metric: str) -> float | None:
    """Return a run's final validation value, ``None`` for a run that is not complete."""
    result = run.result
    if result is None:
        return None
    if metric not in result["metrics"]:
        raise StructuredInitError(
            f"a learning rate is chosen by '{metric}', which '{run.name}' did not log: is there a validation split?"
        )
    return result["metrics"][metric]


def _all_finite(values: Sequence[float | None]) -> bool:
    return bool(values) and all(value is not None and math.isfinite(value) for value in values)
