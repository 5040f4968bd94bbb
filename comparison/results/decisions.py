"""What a comparison was asked, and whether a paired difference answers it: better, worse, equivalent or undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from comparison.results.metric import Metric
from comparison.results.paired import Interval, deviation, t_interval
from comparison.results.sequential import (
    FEWEST,
    FEWEST_NARROW,
    critical_value,
    looking_interval,
    narrow_interval,
    narrow_value,
)

Kind = Literal["better", "worse", "equivalent", "undecided"]

VERDICTS: dict[bool | None, Kind] = {True: "better", False: "worse", None: "undecided"}
EQUAL = 10  # pairs that all have the same difference, after which more of them are not worth their training
MANY = 10_000  # pairs; a question that takes more has no price worth naming


@dataclass(frozen=True)
class Question:
    """What a comparison is to decide, in the unit in which its metric is shown.

    One of ``precision`` and ``margin`` is given.
    """

    precision: float | None = None  # half width of the interval at which the size of a difference is known well enough
    # differences below it are of no interest. An interval inside ``(-margin, margin)`` shows equivalence
    margin: float | None = None
    most: int = 40  # seeds that may be trained
    # ``most`` as it was before the first look; see :func:`~comparison.results.sequential.looking_interval`
    horizon: int = 40
    level: float = 0.95  # of each interval

    @property
    def fewest(self) -> int:
        """Pairs before anything is decided."""
        return FEWEST if self.precision is None else FEWEST_NARROW

    def interval(self, values: Sequence[float]) -> Interval:
        """Return the interval that is valid under this question's rule of stopping."""
        if self.precision is not None:
            return narrow_interval(values, self.level)
        return looking_interval(values, self.horizon, self.level)

    def of_family(self, size: int) -> Question:
        """Return the question for each of several differences, whose intervals then hold together (Bonferroni)."""
        return replace(self, level=1 - (1 - self.level) / max(size, 1))


@dataclass(frozen=True)
class Decision:
    """What is known of one paired difference."""

    kind: Kind  # ``"undecided"`` where more seeds are needed, or where none would help
    interval: Interval  # on the pairs that decided; on all of them while undecided
    within: float | None = None  # no difference beyond it is compatible with the interval; None unless equivalent
    # pairs that it would take in all, if mean and deviation stay as they are; None where decided, or where no
    # reasonable number would do
    needed: int | None = None
    helped: bool = False  # whether more seeds can decide it before the limit
    reason: str = ""  # why none would, where there is no ``needed``


def question_of(manifest: Mapping[str, Any]) -> Question | None:
    """Return the question of a comparison; None where it only describes."""
    asked = manifest.get("question")
    return Question(**asked) if asked else None


def decide(values: Sequence[float], question: Question, metric: Metric) -> Decision:
    """Return what paired differences decide: the first number of pairs that did counts, later ones change nothing."""
    for n in range(question.fewest, len(values) + 1):
        interval = question.interval(values[:n])
        kind = _kind(interval, question, metric)
        if kind != "undecided":
            beyond = max(-interval.low, interval.high) if question.margin is None else question.margin
            return Decision(kind, interval, within=beyond if kind == "equivalent" else None)
    interval = question.interval(values)
    reason = "all seeds agree to the last digit" if len(values) > 1 and t_interval(values).has_no_width else ""
    needed, helped = _needed(values, question), _helped(values, question)
    return Decision("undecided", interval, needed=needed, helped=helped, reason=reason)


def _kind(interval: Interval, question: Question, metric: Metric) -> Kind:
    narrow = question.precision is None or interval.half_width <= question.precision
    if interval.has_no_width or not narrow:  # seeds that agree to the last digit say nothing about others
        return "undecided"
    kind = judged(interval, question.margin, metric)
    return "equivalent" if kind == "undecided" and question.precision is not None else kind


def judged(interval: Interval, margin: float | None, metric: Metric) -> Kind:
    """Return what an interval says: equivalent where it lies inside of ± margin, else better or worse than zero."""
    if margin is not None and max(-interval.low, interval.high) < margin:
        return "equivalent"
    return VERDICTS[metric.is_gain(interval)]


def _critical(n: int, question: Question) -> float:
    if question.precision is not None:
        return narrow_value(n, question.level)
    return critical_value(min(n, 2 * question.horizon), question.horizon, question.level)


def _needed(values: Sequence[float], question: Question) -> int | None:
    """Return the pairs at which values of this mean and deviation would decide."""
    if len(values) < 2 or not deviation(values):
        return None
    mean, spread, n = abs(math.fsum(values) / len(values)), deviation(values), max(question.fewest, len(values) + 1)
    while n <= MANY:
        half_width = _critical(n, question) * spread / math.sqrt(n)
        if question.precision is not None and half_width <= question.precision:
            return n
        if question.margin is not None and (mean > half_width or mean + half_width < question.margin):
            return n
        n += max(1, n // 50)
    return None


def _helped(values: Sequence[float], question: Question) -> bool:
    """Tell whether more seeds can decide before the limit, the deviation being as small as it may well be."""
    from scipy import stats

    n, most = len(values), question.most
    if n >= most:
        return False
    if n < question.fewest:
        return True
    if t_interval(values).has_no_width:
        return n < EQUAL
    smallest = deviation(values) * math.sqrt((n - 1) / float(stats.chi2.isf(0.05, n - 1)))
    last = _critical(most, question) * smallest / math.sqrt(most)
    if question.precision is not None:
        return last <= question.precision
    assert question.margin is not None
    plausible = t_interval(values)
    nearest = max(0.0, plausible.low, -plausible.high)
    return max(plausible.high, -plausible.low) > last or nearest + last < question.margin
