"""A second opinion on any experiment: keep a proposal, discard it, or train it with so many more seeds.

Who tries fifty proposals and keeps what looks better keeps luck. The referee keeps anything without an effect in at
most 5 % of whole histories, however many proposals it judges and however often it looks at each:

- *Looks.* A difference is decided at 5, 10, 20 and 40 seeds alone (:mod:`comparison.contrasts.contrasts`), however
  often one asks between.
- *Proposals.* Every pair of an arm and a baseline has a share of the 5 %, given out in the order in which pairs come:
  nine tenths to as many as were announced, in equal parts, and half of what is left to the next as many, and so on
  (Bonferroni over a sequence: alpha spending, Foster & Stine, JRSS B 70:429, 2008).
- *Memory.* What was seen is kept: values, their order, the rule (:mod:`comparison.verdicts.memory`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

from comparison.contrasts.contrasts import LOOKS, Contrast, decide
from comparison.intervals import Interval, paired_values, t_interval
from comparison.runs.folder import Question, locked, read_json, usual_baseline
from comparison.runs.metric import Metric, mode_of
from comparison.runs.records import A_TABLE
from comparison.tables import count, number, significant
from comparison.verdicts.memory import Runs, Seen, recall, remember
from structured_init.util.arguments import check_positive, check_whole
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import write_json

if TYPE_CHECKING:
    import pandas as pd

Answer = Literal["keep", "discard", "more"]
STATUS: dict[Answer, int] = {"keep": 0, "discard": 1, "more": 75}
LEVEL = 0.95
MOST_PROPOSALS = 10_000  # beyond, no number of seeds shows an effect
LATER = 0.1  # the share of all errors that is kept for proposals beyond those that were announced


@dataclass(frozen=True)
class Opinion:
    """What the referee says of one arm beside its baseline."""

    arm: str  # the proposal
    baseline: str  # what it would replace
    answer: Answer  # keep it, discard it, or train more seeds of it
    why: str  # in words, with the interval
    pairs: int  # seeds that both have
    interval: Interval | None = None  # of the look that decided, or of the last one; None before the first
    missing: dict[str, list[int]] = field(default_factory=dict)  # which of the two lacks which seeds, to train next

    @property
    def seeds(self) -> list[int]:
        """The seeds to train next, of whichever of the two lacks them; none unless the answer is ``"more"``."""
        return sorted({*chain(*self.missing.values())})

    def __str__(self) -> str:
        if self.answer != "more":
            return f"{self.answer} {self.arm}: {self.why}"
        lacking = [f"{name} lacks {', '.join(map(str, seeds))}" for name, seeds in self.missing.items()]
        return f"{count(len(self.seeds), 'more seed')}: {'; '.join(lacking)} ({self.why})"

    def plain(self) -> dict[str, Any]:
        """Return all of it for programs."""
        known = asdict(self) | {"seeds": self.seeds, "text": str(self)}
        difference = known.pop("interval") or {}
        difference.pop("samples", None)
        return known | {"difference": difference}


@dataclass(frozen=True)
class Judgement:
    """What the referee says of a table."""

    opinions: list[Opinion]  # one per arm, in the order of the table
    state: dict[str, Any] = field(repr=False)  # what is remembered, for the next look
    controls: Sequence[str] = ()  # arms that are controls of others, and no proposals: they are not judged

    @property
    def answer(self) -> Answer:
        """More while any arm needs more seeds; else keep where any is kept."""
        given = {opinion.answer for opinion in self.opinions}
        return "more" if "more" in given else "keep" if "keep" in given else "discard"

    @property
    def status(self) -> int:
        """75 while more seeds are needed, else 0 where any arm is kept, 1 where none is."""
        return STATUS[self.answer]

    def __str__(self) -> str:
        # Those that make the answer come first.
        lines = [str(opinion) for opinion in sorted(self.opinions, key=lambda each: each.answer != self.answer)]
        if self.controls:
            lines.append(f"taken as controls, not judged: {', '.join(self.controls)}")
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """Return all of it for programs."""
        arms = [opinion.plain() for opinion in self.opinions]
        return {"answer": self.answer, "status": self.status, "arms": arms, "controls": self.controls}


def judge(
    results: pd.DataFrame,
    baseline: str | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
    margin: float | None = None,
    max_seeds: int | None = None,
    proposals: int | None = None,
    state: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    controls: Collection[str] = (),
) -> Judgement:
    """Judge every arm of a table beside its baseline, but for controls: keep, discard, or more seeds.

    Args:
        results: a row per run, with the columns ``arm``, ``seed`` (whole numbers, which pair runs) and a metric.
        baseline: the arm that the others would replace; the last look's, else ``default``, ``baseline`` or the first.
        metric: the column that counts; when None the only column of numbers.
        mode: ``"max"`` where more of it is better, ``"min"`` where less is; by its name when None.
        margin: a difference below it does not matter, in the unit that is shown (points for an accuracy). When None,
            half a point of an accuracy; else, of the first five runs of the baseline or more, about 1 % of the mean or
            a quarter of the standard deviation, what is larger. It is fixed at that look.
        max_seeds: that you would train at most; 40 when None, which is the last look.
        proposals: how many will be judged in all, at most 10,000; when None as many as the first look has. Fixed at the
            first look. More may come, and find it harder.
        state: of the look before: a :attr:`Judgement.state`, or a JSON file, which is read, then written; no other
            process reads or writes it meanwhile. When None this is the only look.
        controls: arms that are controls of others, and no proposals; the last look's when there are none.

    Raises:
        StructuredInitError: it cannot be judged; the message says why.
    """
    if mode not in (None, "max", "min"):
        raise StructuredInitError(f"mode must be 'max' or 'min', got {mode!r}")
    check_positive("judge", null=True, margin=margin)
    check_whole("judge", null=True, proposals=proposals)
    if proposals is not None and proposals > MOST_PROPOSALS:
        raise StructuredInitError(f"{proposals} proposals are too many to show any: at most {MOST_PROPOSALS:,}")
    most = LOOKS[-1] if max_seeds is None else max_seeds
    if most not in LOOKS:
        raise StructuredInitError(f"max_seeds {most}: differences are decided at 5, 10, 20 and 40 seeds: give one")
    asked = {"metric": metric, "mode": mode, "margin": margin, "proposals": proposals}
    if state is None or isinstance(state, Mapping):
        return _look(results, baseline, controls, asked, most, state)
    path = Path(state).resolve()
    with locked(path.parent, f".{path.name}.lock"):
        said = _look(results, baseline, controls, asked, most, read_json(path) if path.exists() else None)
        write_json(path, said.state)
    return said


def _look(
    results: pd.DataFrame,
    baseline: str | None,
    controls: Collection[str],
    asked: Mapping[str, Any],
    most: int,
    before: Mapping[str, Any] | None,
) -> Judgement:
    """Judge with the memory of the look before; None where there was none. What a first look settles, stays."""
    state = recall(before, asked)
    state["metric"], values = values_of(results, state["metric"])
    reference = baseline or state["baseline"] or usual_baseline(values) or next(iter(values))
    if reference not in values:
        raise StructuredInitError(f"there is no run of the baseline '{reference}': {nearest(reference, values)}")
    state["baseline"] = reference
    if before is None or controls:
        state["controls"] = [name for name in values if name in controls]
    state["controls"] = [name for name in state["controls"] if name != reference]
    others = [name for name in values if name not in {reference, *state["controls"]}]
    if not others:
        raise StructuredInitError(f"all runs are of '{reference}' or of controls: nothing stands beside it")
    state["mode"] = state["mode"] or mode_of(state["metric"])
    state["proposals"] = state["proposals"] or len(others)
    metric = Metric(state["metric"], state["mode"])
    if state["margin"] is None:
        state["margin"] = _usual_margin(metric, values[reference], reference)
    else:
        _refuse_points(state["margin"], metric, values)
    remember(state, others, values)
    opinions = []
    for place, pair in enumerate(state["pairs"]):
        if pair["baseline"] == reference and pair["arm"] in others:
            level = 1 - 2 * level_of(place, state["proposals"])  # only one side of an interval keeps anything
            question = Question(None, state["margin"], most, level)
            opinions.append(_opinion(pair["arm"], reference, pair["seen"], values, metric, question))
    return Judgement(opinions, state, state["controls"])


def _usual_margin(metric: Metric, runs: Runs, reference: str) -> float | None:
    """Return the margin that nobody gave; None while the baseline has too few runs to choose it."""
    finite = [value for value in runs.values() if math.isfinite(value)]
    if metric.factor == 100:
        return 0.5
    if len(finite) < LOOKS[0]:
        return None
    scale = max(abs(math.fsum(finite)) / len(finite), 25 * stdev(finite))  # a metric may be 0 by chance
    if not scale:
        raise StructuredInitError(f"'{metric.name}' is 0 in all runs of '{reference}': give a margin")
    return _round_to_1_2_5(scale / 100)


def _round_to_1_2_5(value: float) -> float:
    """Return a number of the digit 1, 2 or 5 near a positive value, by its logarithm."""
    size = 10.0 ** math.floor(math.log10(value))
    digit = min((1, 2, 5, 10), key=lambda digit: abs(math.log(value / size / digit)))
    return float(f"{digit * size:.1g}")


def _refuse_points(margin: float, metric: Metric, values: Mapping[str, Runs]) -> None:
    """Refuse a margin that is meant in points where values are fractions."""
    known = [value for runs in values.values() for value in runs.values() if math.isfinite(value)]
    if margin > 0.1 and metric.factor == 1 and known and 0 <= min(known) <= max(known) <= 1:
        raise StructuredInitError(
            f"a margin of {margin:g} is in the unit of '{metric.name}', whose values lie between {min(known):.3g} and "
            f"{max(known):.3g}: half a point is 0.005"
        )


def level_of(place: int, proposals: int) -> float:
    """Return the probability of an error that the proposal at a place may have, counted from 0.

    All of them together, however many come, have at most 5 %.
    """
    if place < proposals:
        return (1 - LATER) * (1 - LEVEL) / proposals
    block = math.ceil(math.log2((place + 1) / proposals) - 1e-12)
    return LATER * 0.5**block * (1 - LEVEL) / (proposals * 2 ** (block - 1))


def _opinion(
    arm: str, reference: str, seen: Seen, values: Mapping[str, Runs], metric: Metric, question: Question
) -> Opinion:
    """Return the answer on an arm, by the differences in the seeds that were seen, in the order in which they came."""
    ours = {seed: value for seed, value, _ in seen}
    theirs = {seed: value for seed, _, value in seen}
    lost, lost_there = (sum(not math.isfinite(value) for value in runs.values()) for runs in (ours, theirs))
    if lost_there:
        raise StructuredInitError(
            f"the baseline '{reference}' has no number in {lost_there} of {len(seen)} seeds: leave out the row of a run"
            " that was lost for another reason; where it diverges, report --success counts what succeeds"
        )
    answer = partial(Opinion, arm, reference, pairs=len(seen))
    if lost:
        return answer("discard", f"it has no number in {lost} of {len(seen)} seeds")
    if len(seen) < LOOKS[0]:
        missing = _missing(values, arm, reference, LOOKS[0] - len(seen))
        return answer("more", f"nothing is decided below {LOOKS[0]} seeds that both have", missing=missing)
    paired = paired_values(ours, theirs)
    differences = [metric.factor * paired[seed] for seed in ours]
    found = decide(differences, question, metric)
    assert found.interval is not None
    said = _in_words(found.interval, reference, len(seen), metric, question)
    if found.verdict == "equivalent":
        said = f"no more than {question.margin:.3g} apart: {said}"
    elif found.verdict == "undecided":
        unlikely = _unlikely_gain(differences, found, metric, question)
        if found.next_look and not unlikely:
            missing = _missing(values, arm, reference, found.next_look - len(seen))
            why = f"{said}; the next look is at {found.next_look}"
            return answer("more", why, interval=found.interval, missing=missing)
        open_ = f", as {found.reason}" if found.reason else f" with {question.most} seeds or fewer"
        said = f"{unlikely or f'not shown to be better{open_}'}: {said}"
    return answer("keep" if found.verdict == "better" else "discard", said, interval=found.interval)


def _in_words(interval: Interval, reference: str, pairs: int, metric: Metric, question: Question) -> str:
    """Return the difference with its interval, its level, its seeds and the margin."""
    digits = significant(interval.mean, 3) if interval.has_no_width else significant(interval.half_width, 2)
    mean, low, high = (number(each, digits, signed=True) for each in (interval.mean, interval.low, interval.high))
    ends = f"{low} to {high} at {100 * question.level:.4g} %"
    baseline = f"{reference}, less is better" if metric.mode == "min" else reference
    of_them = f"{interval.samples} of " if interval.samples < pairs else ""
    margin = f"margin {question.margin:g}{metric.points}"
    return f"{mean}{metric.points} ({ends}) over {baseline}, {of_them}{pairs} seeds, {margin}"


def _unlikely_gain(differences: Sequence[float], found: Contrast, metric: Metric, question: Question) -> str:
    """Say that more seeds are not worth their training, as the margin is out of reach; empty where it is not."""
    if found.reason:  # of equal seeds
        return ""
    assert found.interval is not None
    assert question.margin is not None
    interval = t_interval(differences[: found.interval.samples])
    best, sign = (interval.high, 1) if metric.mode == "max" else (interval.low, -1)
    if sign * best >= question.margin:
        return ""
    shown = number(best, significant(question.margin - sign * best, 2), signed=True)
    return (
        f"a gain of {question.margin:g}{metric.points} or more is unlikely: the 95 % t interval of this look alone "
        f"reaches {shown}{metric.points} at best"
    )


def _missing(values: Mapping[str, Runs], arm: str, reference: str, number: int) -> dict[str, list[int]]:
    """Return which of the two lacks which of so many seeds: first those that one of them has, then new ones."""
    half = sorted(values[arm].keys() ^ values[reference].keys())
    later = 1 + max(seed for runs in values.values() for seed in runs)
    seeds = [*half, *range(later, later + number)][:number]
    missing = {name: [seed for seed in seeds if seed not in values[name]] for name in (arm, reference)}
    return {name: lacking for name, lacking in missing.items() if lacking}


def values_of(results: pd.DataFrame, metric: str | None) -> tuple[str, dict[str, Runs]]:
    """Return the metric and arm → seed → value, an accuracy as a fraction.

    Args:
        results: a table with the columns ``arm``, ``seed`` and the metric.
        metric: the column that counts; when None the only column of numbers.
    """
    for column in ("arm", "seed", metric):
        if column is not None and column not in results:
            raise StructuredInitError(f"there is no column '{column}' among {', '.join(map(str, results))}: {A_TABLE}")
    if metric is None:
        names = [str(name) for name in results.select_dtypes("number") if name not in ("arm", "seed")]
        if len(names) != 1:
            has = ", ".join(names[:8]) or "no column of numbers"
            raise StructuredInitError(f"name the metric: the table has {has}")
        metric = names[0]
    numbers = Metric(metric).fractions(results[metric].astype(float).rename("row {}".format))
    values: dict[str, Runs] = {}
    for name, seed, value in zip(results["arm"], results["seed"], numbers, strict=True):
        if not float(seed).is_integer():
            raise StructuredInitError(f"the seed '{seed}' of '{name}' is not a whole number")
        runs = values.setdefault(str(name), {})
        if int(seed) in runs:
            raise StructuredInitError(f"seed {int(seed)} of '{name}' is there twice: a run counts once")
        runs[int(seed)] = value
    return metric, values
