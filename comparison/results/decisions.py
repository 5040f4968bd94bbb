"""What a comparison was asked, and whether a paired difference answers it: better, worse, equivalent or undecided.

Who looks after every seed, and stops as soon as zero is excluded, finds an effect in a quarter of comparisons without
one. So decisions are made at fixed numbers of pairs, whenever and however often one looks. Each look has an equal part
of the error (Bonferroni), and an interval of Student's t at that level: all of them together cover the truth as often
as the level says, of normal differences, whatever rule one stops by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from comparison.results.metric import Metric
from comparison.results.paired import Interval, deviation, t_interval

Kind = Literal["better", "worse", "equivalent", "undecided"]

VERDICTS: dict[bool | None, Kind] = {True: "better", False: "worse", None: "undecided"}
LOOKS = (5, 10, 20, 40)  # pairs at which decisions are made
EQUAL = 10  # pairs that all have the same difference, after which more of them are not worth their training


@dataclass(frozen=True)
class Question:
    """What a comparison is to decide, in the unit in which its metric is shown.

    One of ``precision`` and ``margin`` is given.
    """

    precision: float | None = None  # half width of the interval at which the size of a difference is known well enough
    # differences below it are of no interest. An interval inside ``(-margin, margin)`` shows equivalence
    margin: float | None = None
    most: int = LOOKS[-1]  # seeds that may be trained
    level: float = 0.95  # of the intervals of all looks together

    def of_family(self, size: int) -> Question:
        """Return the question for each of several differences, whose intervals then hold together (Bonferroni)."""
        return replace(self, level=1 - (1 - self.level) / max(size, 1))


@dataclass(frozen=True)
class Decision:
    """What is known of one paired difference."""

    kind: Kind  # ``"undecided"`` where more seeds are needed, or where none would help
    interval: Interval  # of the look that decided; of the last one while undecided, without ends before the first
    within: float | None = None  # no difference beyond it is compatible with the interval; None unless equivalent
    # the look that decides, if mean and deviation stay as they are; None where decided, or where none would
    needed: int | None = None
    next_look: int | None = None  # pairs at which it is decided next; None where no further seed is worth its training
    reason: str = ""  # why none would, where there is no ``needed``


def question_of(manifest: Mapping[str, Any]) -> Question | None:
    """Return the question of a comparison; None where it only describes."""
    asked = manifest.get("question")
    return Question(asked.get("precision"), asked.get("margin"), asked.get("most", LOOKS[-1])) if asked else None


def next_look(pairs: int, most: int = LOOKS[-1]) -> int | None:
    """Return the number of pairs at which the next decision is made; None where that is beyond the limit."""
    return next((look for look in LOOKS if pairs < look <= most), None)


def look_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the interval of the last look that has its pairs; one without ends before the first.

    ``level`` is that of all looks together.
    """
    reached = [look for look in LOOKS if look <= len(values)]
    if not reached:
        mean = math.fsum(values) / len(values)
        return Interval(mean, -math.inf, math.inf, len(values))
    return t_interval(values[: reached[-1]], _level_of_look(level))


def decide(values: Sequence[float], question: Question, metric: Metric) -> Decision:
    """Return what paired differences decide: the first look that did counts, later pairs change nothing."""
    for look in LOOKS:
        interval = look_interval(values[:look], question.level)
        kind = _kind(interval, question, metric)
        if kind != "undecided":
            beyond = max(-interval.low, interval.high) if question.margin is None else question.margin
            return Decision(kind, interval, within=beyond if kind == "equivalent" else None)
    further = next_look(len(values), question.most)
    if len(values) > 1 and t_interval(values).has_no_width:
        further = further if len(values) < EQUAL else None
        return Decision("undecided", interval, next_look=further, reason="all seeds agree to the last digit")
    return Decision("undecided", interval, needed=_needed(values, question, metric), next_look=further)


def _level_of_look(level: float) -> float:
    return 1 - (1 - level) / len(LOOKS)


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


def _needed(values: Sequence[float], question: Question, metric: Metric) -> int | None:
    """Return the look at which differences of this mean and deviation would be decided."""
    from scipy import special

    if len(values) < 2:
        return None
    mean, spread = math.fsum(values) / len(values), deviation(values)
    for look in LOOKS:
        critical = float(special.stdtrit(look - 1, 0.5 + _level_of_look(question.level) / 2))
        half_width = critical * spread / math.sqrt(look)
        interval = Interval(mean, mean - half_width, mean + half_width, look)
        if look > len(values) and _kind(interval, question, metric) != "undecided":
            return look
    return None
