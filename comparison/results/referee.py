"""A second opinion on any experiment: keep a proposal, discard it, or train it with so many more seeds.

Who tries fifty proposals and keeps what looks better keeps luck. The referee keeps anything without an effect in at
most 5 % of whole histories, however many proposals it judges and however often it looks at each:

- *Looks.* A difference is decided at 5, 10, 20 and 40 seeds alone (:mod:`comparison.results.contrasts`), however often
  one asks between.
- *Proposals.* Every pair of an arm and a baseline has a share of the 5 %, given out in the order in which pairs come:
  nine tenths to as many as were announced, in equal parts, and half of what is left to the next as many, and so on
  (Bonferroni over a sequence: alpha spending, Foster & Stine, JRSS B 70:429, 2008).
- *Memory.* What was seen is kept: values, their order, the rule. Runs that change or vanish, and rules that change, are
  refused. A second try at a seed is how luck is kept.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

from comparison.results.contrasts import LOOKS, Contrast, Question, decide
from comparison.results.controls import Controls, no_competitors, roles_of, usual_baseline
from comparison.results.metric import ROUNDED_SHARE, Metric, mode_of
from comparison.results.paired import Interval, paired_values, t_interval
from comparison.results.power import usual_half_widths
from comparison.results.records import A_TABLE
from comparison.results.tables import count, number, significant
from structured_init.util.arguments import check_positive
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import write_text

if TYPE_CHECKING:
    import pandas as pd

Answer = Literal["keep", "discard", "more"]
STATUS: dict[Answer, int] = {"keep": 0, "discard": 1, "more": 75}
LEVEL = 0.95
MOST_SINGLE = 4  # arms of one run each, beyond which they may be seeds of others
LATER = 0.1  # the share of all errors that is kept for proposals beyond those that were announced


@dataclass(frozen=True)
class Opinion:
    """What the referee says of one arm beside its baseline."""

    arm: str  # the proposal
    baseline: str  # what it would replace
    answer: Answer  # keep it, discard it, or train more seeds of it
    why: str  # in words, with the interval
    seeds: list[int]  # to train next, of whichever of the two lacks them; empty unless the answer is ``"more"``
    interval: Interval | None  # of the look that decided, or of the last one; None before the first
    pairs: int  # seeds that both have
    missing: dict[str, list[int]] = field(default_factory=dict)  # which of the two lacks which of ``seeds``

    def __str__(self) -> str:
        if self.answer != "more":
            return f"{self.answer} {self.arm}: {self.why}"
        lacking = {name: ", ".join(map(str, seeds)) for name, seeds in self.missing.items()}
        both = f" of {' and '.join(lacking)}: {', '.join(map(str, self.seeds))}"
        each = f": {'; '.join(f'{name} lacks {seeds}' for name, seeds in lacking.items())}"
        return f"{count(len(self.seeds), 'more seed')}{both if len({*lacking.values()}) == 1 else each} ({self.why})"

    def plain(self) -> dict[str, Any]:
        """Return all of it for programs, without infinities."""
        known = asdict(self) | {"text": str(self)}
        ends = known.pop("interval") or {}
        finite = {name: value if math.isfinite(value) else None for name, value in ends.items() if name != "samples"}
        return known | {"difference": finite}


@dataclass(frozen=True)
class Judgement:
    """What the referee says of a table."""

    opinions: list[Opinion]  # one per arm, in the order of the table
    state: dict[str, Any] = field(repr=False)  # what is remembered, for the next look
    controls: Sequence[str] = ()  # arms that are controls of others, and no proposals: they are not judged

    @property
    def answer(self) -> Answer:
        """Keep where any arm is kept; else more where any needs more seeds."""
        given = {opinion.answer for opinion in self.opinions}
        return "keep" if "keep" in given else "more" if "more" in given else "discard"

    @property
    def status(self) -> int:
        """0 to keep, 1 to discard, 75 where more seeds are needed."""
        return STATUS[self.answer]

    def __str__(self) -> str:
        first = [opinion for opinion in self.opinions if opinion.answer == self.answer]
        told = "; structured-init report says whether an arm beats its control" if self.answer == "keep" else ""
        taken = [f"taken as controls, not judged: {', '.join(self.controls)}{told}"] if self.controls else []
        others = (opinion for opinion in self.opinions if opinion not in first)
        return "\n".join(map(str, [*first, *others, *taken]))

    def plain(self) -> dict[str, Any]:
        """Return all of it for programs, without infinities."""
        arms = [opinion.plain() for opinion in self.opinions]
        return {"answer": self.answer, "status": self.status, "arms": arms, "controls": self.controls}


def judge(
    results: pd.DataFrame,
    baseline: str | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
    margin: float | None = None,
    precision: float | None = None,
    max_seeds: int | None = None,
    proposals: int | None = None,
    state: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    arm: str = "arm",
    seed: str = "seed",
    controls: Controls | str | None = None,
) -> Judgement:
    """Judge every arm of a table beside its baseline, but for controls: keep, discard, or more seeds.

    Args:
        results: a row per run.
        baseline: the arm that the others would replace; the last look's, else ``default``, ``baseline`` or the first.
        metric: the column that counts; when None the only column of numbers.
        mode: ``"max"`` where more of it is better, ``"min"`` where less is; by its name when None.
        margin: a difference below it does not matter, in the unit that is shown (points for an accuracy). When None,
            half a point of an accuracy; else, of the first five runs of the baseline or more, about 1 % of the mean or
            a quarter of the standard deviation, what is larger. It is fixed at that look.
        precision: in its place, the half width at which a difference is known well enough.
        max_seeds: that you would train at most; 40 when None, which is the last look.
        proposals: how many will be judged in all; when None as many as the first look has. Fixed at the first look.
            More may come, and find it harder.
        state: of the look before: a :attr:`Judgement.state`, or a JSON file, which is read, then written. When None
            this is the only look.
        arm: the column that names the arm.
        seed: the column of whole numbers that pairs runs.
        controls: arm → its control or controls, or one for all arms; the last look's when None.

    Raises:
        StructuredInitError: it cannot be judged; the message says why.
    """
    if not hasattr(results, "columns"):
        raise StructuredInitError(f"judge takes a table of pandas, a row per run, got {type(results).__name__}")
    if mode not in (None, "max", "min"):
        raise StructuredInitError(f"mode must be 'max' or 'min', got {mode!r}")
    check_positive("judge", null=True, margin=margin, precision=precision)
    most = LOOKS[-1] if max_seeds is None else max_seeds
    if most not in LOOKS:
        raise StructuredInitError(f"max_seeds {most}: differences are decided at 5, 10, 20 and 40 seeds: give one")
    path = None if state is None or isinstance(state, Mapping) else Path(state)
    before = _read(path) if path is not None else dict(state) if isinstance(state, Mapping) else {}
    seen = {each[of]: None for each in before.get("pairs", ()) for of in ("arm", "baseline")}
    if seen and arm in results and not {*seen} & {*map(str, results[arm])}:
        kept, way_out = ("the state", "give none") if path is None else (f"'{path.name}'", "move it away")
        raise StructuredInitError(f"the look that is kept in {kept} was at other arms ({', '.join(seen)}): {way_out}")
    asked = {"metric": metric, "mode": mode, "margin": margin, "precision": precision}
    asked |= {"proposals": proposals}
    anew = "with a state of their own" if path is None else f"without '{path.name}', which holds that look"
    for name, value in asked.items() if before else ():
        if value not in (None, before[name]):
            raise StructuredInitError(
                f"{name.replace('_', ' ')} was {before[name] or 'not given'} at the first look and is {value} now: a "
                f"rule that changes after a look is none. Keep it, or judge fresh seeds {anew}"
            )
    metric = metric or before.get("metric")
    for column in (arm, seed, metric):
        if column is not None and column not in results:
            given = results if column == metric else results.select_dtypes(exclude="floating")
            names = {*map(str, given.columns)} - ({arm, seed} if column != metric else set())
            raise StructuredInitError(f"there is no column '{column}': {nearest(column, names) if names else A_TABLE}")
    metric = metric or _only_metric(results, arm, seed)
    factor = Metric(metric).factor
    values = _values(results, arm, seed, metric)
    finite = [value for runs in values.values() for value in runs.values() if math.isfinite(value)]
    # Whether accuracies are as shown, not as logged; it is settled at the first look.
    above = factor == 100 and max(finite, default=0.0) > ROUNDED_SHARE
    percent = before.get("percent", above)
    if percent:
        values = {name: {seed: value / 100 for seed, value in runs.items()} for name, runs in values.items()}
    if margin and margin > 0.1 and factor == 1 and finite and min(finite) >= 0 and max(finite) <= 1:
        raise StructuredInitError(
            f"a margin of {margin:g} is in the unit of '{metric}', whose values lie between {min(finite):.3g} and "
            f"{max(finite):.3g}: half a point is 0.005"
        )
    reference = _baseline(values, baseline, before)
    roles = roles_of({"arms": dict.fromkeys(values), "baseline": reference}, controls)
    taken = no_competitors(roles, reference) if controls else {*before.get("controls", ())} - {reference}
    left_out = [name for name in values if name in taken]
    others = [name for name in values if name not in {*taken, reference}]
    if not others:
        also = f" or controls ({', '.join(left_out)})" if left_out else ""
        raise StructuredInitError(f"all runs are of '{reference}'{also}: nothing stands beside it")
    known = Metric(metric, mode or before.get("mode") or mode_of(metric))
    rule = {name: before[name] for name in asked} if before else asked | {"metric": metric, "mode": known.mode}
    rule["proposals"] = rule["proposals"] or len(others)
    if rule["margin"] is not None and rule["precision"] is not None:
        raise StructuredInitError("a margin and a precision are two questions: give one")
    finite = [value for value in values[reference].values() if math.isfinite(value)]
    if rule["margin"] is None and rule["precision"] is None and known.factor == 100:  # whatever the baseline has
        rule["margin"] = usual_half_widths(known, 1)[0]
    elif rule["margin"] is None and rule["precision"] is None and len(finite) >= LOOKS[0]:
        scale = max(abs(math.fsum(finite)) / len(finite), 25 * stdev(finite))  # a metric may be 0 by chance
        if not scale:
            raise StructuredInitError(f"'{metric}' is 0 in all runs of '{reference}': give a margin")
        rule["margin"] = usual_half_widths(known, scale)[0]
    pairs = {(each["arm"], each["baseline"]): each for each in before.get("pairs", [])}
    opinions = []
    for name in others:
        pair = pairs.setdefault((name, reference), {"arm": name, "baseline": reference, "seen": []})
        _remember(pair, values[name], values[reference])
        place = list(pairs).index((name, reference))
        level = 1 - 2 * level_of(place, rule["proposals"])  # only one side of an interval keeps anything
        question = Question(rule["precision"], rule["margin"], most, level)
        opinions.append(_opinion(pair, values, known, question))
        pair["answer"] = opinions[-1].answer
    after = {"version": 1, **rule, "percent": percent, "baseline": reference}
    after |= {"controls": left_out, "pairs": list(pairs.values())}
    if path is not None:
        write_text(path, json.dumps(after, indent=1) + "\n")
    return Judgement(opinions, after, left_out)


def level_of(place: int, proposals: int) -> float:
    """Return the probability of an error that the proposal at a place may have, counted from 0.

    All of them together, however many come, have at most 5 %.
    """
    if place < proposals:
        return (1 - LATER) * (1 - LEVEL) / proposals
    block = math.ceil(math.log2((place + 1) / proposals) - 1e-12)
    return LATER * 0.5**block * (1 - LEVEL) / (proposals * 2 ** (block - 1))


def _opinion(
    pair: Mapping[str, Any],
    values: Mapping[str, Mapping[int, float]],
    metric: Metric,
    question: Question,
) -> Opinion:
    arm, reference, seen = pair["arm"], pair["baseline"], pair["seen"]

    def opinion(answer: Answer, why: str, found: Contrast | None = None, seeds: Sequence[int] = ()) -> Opinion:
        lacking = {name: own for name in (arm, reference) if (own := [s for s in seeds if s not in values[name]])}
        return Opinion(arm, reference, answer, why, list(seeds), found and found.interval, len(seen), lacking)

    lost = [sum(not math.isfinite(each[which]) for each in seen) for which in (1, 2)]
    if lost[1]:
        raise StructuredInitError(
            f"the baseline '{reference}' has no number in {lost[1]} of {len(seen)} seeds: leave out the row of a run "
            "that was lost for another reason; where it diverges, structured-init report --success counts what succeeds"
        )
    if lost[0]:
        return opinion("discard", f"it has no number in {lost[0]} of {len(seen)} seeds")
    paired = paired_values(*({each[0]: each[which] for each in seen} for which in (1, 2)))
    differences = [metric.factor * paired[seed] for seed, *_ in seen]
    if len(seen) < LOOKS[0]:
        missing = LOOKS[0] - len(seen)
        return opinion("more", f"nothing is decided below {LOOKS[0]}", None, _next(values, pair, missing))
    found = decide(differences, question, metric)
    interval, unit = found.interval, metric.points
    assert interval is not None
    digits = significant(interval.mean, 3) if interval.has_no_width else significant(interval.half_width, 2)
    change = lambda value: number(value, digits, signed=True)  # noqa: E731
    baseline = f"{reference}, less is better" if metric.mode == "min" else reference
    of_them = f"{interval.samples} of " if interval.samples < len(seen) else ""
    margin = "" if question.margin is None else f", margin {question.margin:g}{unit}"
    said = (
        f"{change(interval.mean)}{unit} ({change(interval.low)} to {change(interval.high)} at "
        f"{100 * question.level:.4g} %) over {baseline}, {of_them}{len(seen)} seeds{margin}"
    )
    if found.verdict in ("better", "worse"):
        return opinion("keep" if found.verdict == "better" else "discard", said, found)
    if found.verdict == "equivalent":
        apart = question.margin or max(-interval.low, interval.high)
        return opinion("discard", f"no more than {apart:.3g} apart: {said}", found)
    gain = interval.mean if metric.mode == "max" else -interval.mean
    likely = gain + t_interval(differences).half_width
    if question.margin is not None and likely < question.margin and not found.reason:  # of equal seeds
        end = likely if metric.mode == "max" else -likely
        enough = max(
            digits, significant(end, 2), significant(question.margin - likely, 1)
        )  # to tell it from the margin
        reached = f"{number(end, enough, signed=True)}{unit}"
        ends = f"the 95 % t interval of this look alone reaches {reached} at best"
        kept = "what is kept needs an interval that holds over all looks and proposals"
        why = f"a gain of {question.margin:g}{unit} or more is unlikely: {ends}; {kept}: {said}"
        return opinion("discard", why, found)
    if found.next_look:
        seeds = _next(values, pair, found.next_look - len(seen))
        return opinion("more", f"{said}; the next look is at {found.next_look}", found, seeds)
    open_ = f", as {found.reason}" if found.reason else f" with {question.most} seeds or fewer"
    return opinion("discard", f"not shown to be better{open_}: {said}", found)


def _next(values: Mapping[str, Mapping[int, float]], pair: Mapping[str, Any], number: int) -> list[int]:
    """Return seeds to train: first those that one of the two has, then the next ones."""
    both = [set(values.get(pair[name], ())) for name in ("arm", "baseline")]
    half = sorted(both[0] ^ both[1])
    later = max((seed for seeds in values.values() for seed in seeds), default=-1) + 1
    return [*half, *range(later, later + number)][:number]


def _remember(pair: dict[str, Any], ours: Mapping[int, float], theirs: Mapping[int, float]) -> None:
    """Add the seeds that are new to what was seen of a pair."""
    for seed, *then in pair["seen"]:
        for name, old, now in zip(
            (pair["arm"], pair["baseline"]), then, (ours.get(seed), theirs.get(seed)), strict=True
        ):
            if now is None:
                raise StructuredInitError(f"seed {seed} of '{name}' was judged before and is gone: put it back")
            if now != old and not (math.isnan(now) and math.isnan(old)):
                raise StructuredInitError(
                    f"seed {seed} of '{name}' was {old:g} when it was judged and is {now:g} now: a run counts once"
                )
    known = {seed for seed, *_ in pair["seen"]}
    pair["seen"] += [[seed, ours[seed], theirs[seed]] for seed in sorted(set(ours) & set(theirs)) if seed not in known]
    if not pair["seen"]:
        raise StructuredInitError(f"'{pair['arm']}' and '{pair['baseline']}' have no seed in common")


def _values(results: pd.DataFrame, arm: str, seed: str, metric: str) -> dict[str, dict[int, float]]:
    """Return arm → seed → value."""
    values: dict[str, dict[int, float]] = {}
    for row, name, given, value in zip(results.index, results[arm], results[seed], results[metric], strict=True):
        number = _float(given, seed, row)
        if not number.is_integer():
            raise StructuredInitError(f"the seed '{given}' of '{name}' is not a whole number")
        if int(number) in values.setdefault(str(name), {}):
            raise StructuredInitError(f"seed {int(number)} of '{name}' is there twice: a run counts once")
        values[str(name)][int(number)] = _float(value, metric, row)
    refuse_single_runs({name: len(runs) for name, runs in values.items()})
    return values


def _float(value: Any, column: str, row: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise StructuredInitError(f"row {row}: '{value}' in the column '{column}' is not a number") from None


def refuse_single_runs(counts: Mapping[str, int]) -> None:
    """Refuse runs of which more than a few arms have one each: those are seeds of other arms, perhaps."""
    single = [name for name, runs in counts.items() if runs == 1]
    if len(single) > max(MOST_SINGLE, 0.75 * len(counts)):
        raise StructuredInitError(
            f"{len(single)} of {len(counts)} arms have a single run ('{single[0]}', '{single[1]}', …): are they seeds "
            "of the same arm? Say how runs are named, --runs PATTERN; or name columns of a table, or settings in logs "
            "of Lightning: --arm NAME --seed NAME"
        )


def _baseline(values: Mapping[str, Any], asked: str | None, before: Mapping[str, Any]) -> str:
    wanted: str = asked or before.get("baseline") or usual_baseline(values) or next(iter(values))
    if wanted not in values:
        raise StructuredInitError(f"there is no run of the baseline '{wanted}': {nearest(wanted, list(values))}")
    return wanted


def _only_metric(results: pd.DataFrame, arm: str, seed: str) -> str:
    names = [str(name) for name in results.select_dtypes("number").columns if name not in (arm, seed)]
    if len(names) != 1:
        raise StructuredInitError(f"name the metric: the table has {', '.join(names[:8]) or 'no column of numbers'}")
    return names[0]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return known if known["version"] == 1 else known["pairs"][None]
    except (OSError, ValueError, TypeError, KeyError):
        raise StructuredInitError(
            f"'{path}' does not hold what earlier looks saw; nothing is judged without it"
        ) from None
