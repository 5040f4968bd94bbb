"""One table of contrasts: how an arm differs from another at a place of the grid, and what is said of it.

An arm is held against the baseline and against each of its controls. All of these differences, at all places of a grid,
are one family, whose verdicts hold together. A control that was made for an arm, or named as one, is no competitor of
the baseline: its difference to it is shown and not judged.

Where a margin or a precision was asked for, decisions are made at fixed numbers of pairs, whenever and however often
one looks. Who looks after every seed, and stops as soon as zero is excluded, finds an effect in a quarter of
comparisons without one. Each look has an equal part of the error (Bonferroni), and an interval of Student's t at that
level: all of them together cover the truth as often as the level says, whatever rule one stops by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comparison.contrasts.targets import Share, fisher
from comparison.intervals import (
    FAMILY_LEVEL,
    FEWEST_FOR_INTERVAL,
    Interval,
    Values,
    holm,
    p_value,
    t_interval,
)
from comparison.runs.folder import Point, Question
from comparison.runs.metric import Metric, Verdict

BASELINE = "baseline"  # the role of what arms are to replace; a control has a role of its own
LOOKS = (5, 10, 20, 40)  # pairs at which decisions are made
EQUAL = 10  # pairs that all have the same difference, after which more of them are not worth their training
# Why a difference has no verdict, whatever its interval says.
IS_CONTROL = "a control"
DIVERGED = "a side that looks no worse has diverged in some seeds"
ALL_EQUAL = "all seeds agree to the last digit"


@dataclass(kw_only=True)
class Contrast:
    """How an arm differs from a reference: a row of the table, whose verdict is final once all rows are there.

    ``interval`` is Student's t of the paired differences, 95 %. Where something was asked, it is that of the look that
    decided, or of the last one, and without ends before the first. It is None where runs that succeed are counted.
    """

    place: Point = ()  # of the grid
    arm: str = ""
    reference: str = ""
    role: str = BASELINE  # of the reference; a control has a role of its own, such as "scrambled"
    verdict: Verdict
    interval: Interval | None = None
    by_seed: Values = field(default_factory=dict)  # arm − reference, in the seeds that have both
    p: float | None = None  # of this difference alone; None where there is no such test
    adjusted: float | None = None  # among all that are judged, by Holm's method; None where this one is not
    reason: str = ""  # why it is not judged, or why no seed would decide it
    next_look: int | None = None  # pairs at which it is decided next; None where no further seed is worth its training

    @property
    def pairs(self) -> int:
        """How many pairs the interval stands on."""
        return self.interval.samples if self.interval else 0

    @property
    def is_judged(self) -> bool:
        """Whether a verdict could be given, so that this difference counts among those that are judged."""
        return self.reason not in (IS_CONTROL, DIVERGED)

    def leave_open(self, reason: str) -> None:
        """Judge nothing, and train no further seed for it."""
        self.verdict, self.reason, self.next_look = "undecided", reason, None

    def row(self) -> dict[str, Any]:
        """Return it with plain numbers."""
        names = {"place": dict(self.place), "arm": self.arm, "reference": self.reference, "role": self.role}
        found = {}
        if self.interval is not None:
            ends = {"mean": self.interval.mean, "low": self.interval.low, "high": self.interval.high}
            found = {"pairs": self.pairs, **ends, "by_seed": self.by_seed}
        return {**names, **found, "p": self.p, "adjusted": self.adjusted, "verdict": self.verdict}


def describe(values: Sequence[float], metric: Metric) -> Contrast:
    """Return what paired differences say alone, without names, by Student's t-test; two of them show nothing."""
    interval = t_interval(values)
    verdict = metric.verdict(interval) if len(values) >= FEWEST_FOR_INTERVAL else "undecided"
    return Contrast(verdict=verdict, interval=interval, p=p_value(values) if len(values) > 1 else None)


def describe_counts(ours: Share, theirs: Share) -> Contrast:
    """Return how much more often one arm succeeds than another, without names, by Fisher's exact test."""
    more = ours.count * theirs.runs > theirs.count * ours.runs
    return Contrast(verdict="better" if more else "worse", p=fisher(ours, theirs))


def judge_together(found: Sequence[Contrast]) -> None:
    """Let the verdicts of all contrasts hold together, by Holm's method.

    A difference that is there twice, to a baseline that is a control as well, counts once. Those that were decided at
    looks have no p-value; their intervals hold together by their level.
    """
    key = lambda each: (each.place, each.arm, each.reference)  # noqa: E731
    tested = [each for each in found if each.is_judged and each.p is not None]
    adjusted = holm({key(each): each.p for each in tested})
    for each in tested:
        each.adjusted = adjusted[key(each)]
        if each.adjusted >= FAMILY_LEVEL:
            each.verdict = "undecided"


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


def decide(values: Sequence[float], question: Question, metric: Metric) -> Contrast:
    """Return what differences decide, without names: the first look that did counts, later pairs change nothing."""
    for look in LOOKS:
        interval = look_interval(values[:look], question.level)
        verdict = _answer(interval, question, metric)
        if verdict != "undecided":
            return Contrast(verdict=verdict, interval=interval)
    further = next_look(len(values), question.most)
    found = Contrast(verdict="undecided", interval=interval, next_look=further)
    if len(values) > 1 and t_interval(values).has_no_width:
        found.reason = ALL_EQUAL
        found.next_look = further if len(values) < EQUAL else None
    return found


def _level_of_look(level: float) -> float:
    return 1 - (1 - level) / len(LOOKS)


def _answer(interval: Interval, question: Question, metric: Metric) -> Verdict:
    narrow = question.precision is None or interval.half_width <= question.precision
    if interval.has_no_width or not narrow:  # seeds that agree to the last digit say nothing about others
        return "undecided"
    verdict = metric.verdict(interval, question.margin)
    return "equivalent" if verdict == "undecided" and question.precision is not None else verdict


# What an arm's controls leave of its gain --------------------------------------------------------------------------

GAINS = {"better": "shown", "worse": "refuted", "equivalent": "none", "undecided": "not shown"}


def due_to_structure(beside: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return whether a gain is due to the structure, and the controls that decide it.

    By the verdict on the arm beside each control it is ``"shown"`` where every control is exceeded, ``"refuted"`` where
    one gains as much or more, ``"not shown"`` where a difference to one is undecided; ``"no control"`` without any.
    """
    as_good = [name for name, verdict in beside.items() if verdict in ("worse", "equivalent")]
    missing = [name for name, verdict in beside.items() if verdict != "better"]
    if not beside:
        return "no control", []
    return ("refuted", as_good) if as_good else ("not shown", missing) if missing else ("shown", [*beside])


def gain_and_structure(found: Sequence[Contrast]) -> dict[str, tuple[str, str, list[str]]]:
    """Return of every arm of a place: is a gain over the baseline shown, is it due to structure, what decides that.

    Of controls it says nothing, and of no arm where there are none.
    """
    controls, beside = set(), {}
    for each in found:
        if each.role != BASELINE:
            controls.add(each.reference)
            beside.setdefault(each.arm, {})[each.reference] = each.verdict
    said = {}
    for each in found if controls else ():
        if each.role == BASELINE and each.arm not in controls and each.reason != IS_CONTROL:
            gain = GAINS[each.verdict]
            left = due_to_structure(beside.get(each.arm, {})) if gain == "shown" else ("–", [])
            said[each.arm] = gain, *left
    return said
