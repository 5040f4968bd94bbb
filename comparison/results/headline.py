"""The tables of a comparison: never a bare mean."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from comparison.results.contrasts import BASELINE, DIVERGED, IS_CONTROL, Contrast, gain_and_structure
from comparison.results.finals import ArmResult, ArmSuccess
from comparison.results.folder import Manifest, chosen_learning_rates, point_label
from comparison.results.metric import Metric
from comparison.results.paired import FEWEST_FOR_INTERVAL, t_interval
from comparison.results.place import (
    PlaceResult,
    all_or_nothing,
    count_successes,
    fewer_seeds,
    find_places,
)
from comparison.results.records import load_results
from comparison.results.tables import Cell, Table, count, interval_text, number, p_text, shown, significant, times
from comparison.results.targets import Reach, Share, Times, steps_text

ALONE = "1 seed, no interval"
FEW_EVALUATIONS = 5  # of a curve, below which it is said that steps are read off a line between so many
SAME = "the same difference in all seeds: no t-test applies"
TWO = "2 seeds, no interval: run at least 5"
SPEEDS = {True: "gain", False: "loss", None: "open"}
KINDS = {"better": "gain", "worse": "loss", "equivalent": "open", "undecided": "open"}  # of a cell, by the verdict


def look(folder: str | os.PathLike[str], manifest: Manifest) -> list[PlaceResult]:
    """Return what the complete runs of a comparison say, at every place of the grid."""
    return find_places(load_results(folder), manifest, choices=chosen_learning_rates(folder))


def headline_tables(found: Sequence[PlaceResult]) -> str:
    """Return the headline table of every place of the grid in Markdown."""
    parts = []
    for each in found:
        title = [f"**{point_label(each.point)}**"] if len(found) > 1 else []
        text = headline_table(each).markdown() if each.arms else f"no complete run with {each.metric.name} yet"
        beside = controls_table(each)
        parts.append("\n\n".join([*title, text, *([beside.markdown()] if beside else [])]))
    return "\n\n".join(parts)


def headline_table(found: PlaceResult) -> Table:
    """Return the headline table of one place of the grid, a row per arm: of means, or of runs that succeed."""
    counted, means = found.threshold is not None, found.means or found
    digits, mean = decimals(means), _value_cells(means)
    label = f"{found.metric.label}, {found.metric.better}"
    said, steps = gain_and_structure(found.contrasts), found.counted.rpartition(" ")[2]
    columns: list[tuple[str, Callable[[Any], Cell]]] = [("arm", lambda arm: Cell(arm.name, arm=arm.name))]
    if counted:
        ends = lambda share: f"{number(100 * share.low, 0)} to {number(100 * share.high, 0)} %"  # noqa: E731
        runs = f"runs with {threshold_text(found)}"
        columns.append((runs, lambda arm: Cell(share_text(arm.share), ends(arm.share))))
        columns.append((f"against {found.baseline}", partial(baseline_cell, found=found, digits=digits)))
        by_name = {arm.name: arm for arm in means.arms}
        columns.append((f"mean {label}", lambda arm: Cell(mean(by_name[arm.name]).text, kept_text(by_name[arm.name]))))
    else:
        columns.append(("seeds", lambda arm: Cell(str(arm.seeds), diverged_text(arm))))
        if any(arm.learning_rate is not None or arm.no_rate for arm in found.arms):
            columns.append(("learning rate", _rate_cell))
        columns.append((label, mean))
        columns.append((f"− {found.baseline} (paired)", partial(baseline_cell, found=found, digits=digits)))
    if said:
        columns.append(("gain; due to structure", lambda arm: _verdict_cell(*said.get(arm.name, ("", "", [])))))
    if not counted and found.target is not None and not found.at_once:
        columns.append((f"{steps} to {target_text(found, digits)}", lambda arm: _steps_cell(arm.reach)))
        columns.append(("speed-up", partial(_speed_up_cell, found=found, digits=digits)))
    if counted and any(arm.times for arm in found.arms):
        half = f"{steps} until half have {threshold_text(found, on_validation=True)}"
        columns.append((half, lambda arm: _median_cell(arm.times)))
    return Table([heading for heading, _ in columns], [[cell(arm) for _, cell in columns] for arm in found.arms])


def controls_table(found: PlaceResult) -> Table | None:
    """Return a row per arm and control; None where there are no controls."""
    digits = decimals(found.means or found)
    rows = [
        [
            Cell(each.arm, arm=each.arm),
            Cell(each.reference, each.role, arm=each.reference),
            contrast_cell(each, found, digits),
        ]
        for each in found.contrasts
        if each.role != BASELINE
    ]
    compared = "compared" if found.threshold is not None else "difference (paired)"
    return Table(["arm", "control", compared], rows) if rows else None


def target_text(found: PlaceResult, digits: int) -> str:
    """Return what is to be reached, with its unit and its split."""
    split, _, name = found.metric.on_validation.partition("/")
    return f"{_value(found, found.target or 0.0, digits)}{f' ({split})' if name else ''}"


def _value(found: PlaceResult, value: float, digits: int) -> str:
    return f"{number(value, digits)}{found.metric.percent}"


def baseline_cell(arm: ArmResult | ArmSuccess, found: PlaceResult, digits: int) -> Cell:
    """Return what an arm is beside the baseline."""
    if arm.name == found.baseline:
        return Cell("baseline")
    each = found.to_baseline(arm.name)
    if each is not None:
        return contrast_cell(each, found, digits)
    if isinstance(arm, ArmResult):
        return Cell(no_value(arm) if arm.value is None else "nothing paired")
    return Cell("")


def contrast_cell(each: Contrast, found: PlaceResult, digits: int) -> Cell:
    """Return a difference with its interval, or whether an arm succeeds more often, and how that was judged."""
    kind, interval = KINDS[each.verdict], each.interval
    if interval is None:
        if each.reason:
            return Cell("", each.reason)
        word = {"better": "more often", "worse": "less often"}.get(each.verdict, "not told apart")
        return Cell(word, f"adjusted {p_text(each.adjusted or 0.0)}", kind)
    seeds, notes = next(arm.seeds for arm in found.arms if arm.name == each.arm), []
    if each.pairs == 1:
        notes.append(ALONE if seeds == 1 else "1 pair, no interval")
    elif each.pairs < FEWEST_FOR_INTERVAL and found.question is None and seeds == interval.samples:
        notes.append(TWO)
    elif each.pairs != seeds:
        notes.append(f"{each.pairs} pairs")
    if found.question is not None and each.reason != IS_CONTROL:
        notes.append(decision_text(each, found, digits))
    if each.reason == DIVERGED:
        notes.append("not judged")
    elif each.pairs > 1 and interval.has_no_width:
        notes.append(SAME if interval.mean else "equal in all seeds")
    elif each.reason == IS_CONTROL:
        notes.append(each.reason)
    elif each.adjusted is not None and found.family > 1:
        notes.append(f"adjusted {p_text(each.adjusted)}")
    return Cell(interval_text(interval, digits, signed=True), ", ".join(notes), kind)


def decision_text(each: Contrast, found: PlaceResult, digits: int) -> str:
    """Return a decision in words: ``better``, ``equivalent within 0.5``, ``undecided, about 20 seeds would decide``."""
    if each.verdict == "equivalent":
        return f"equivalent within {number(within(each, found), digits)}"
    needed = f", about {each.needed} seeds would decide" if each.needed else ""
    return f"{each.verdict}{needed}"


def within(each: Contrast, found: PlaceResult) -> float:
    """Return the size beyond which no difference is compatible with one that is equivalent."""
    assert each.interval is not None
    assert found.question is not None
    return found.question.margin or max(-each.interval.low, each.interval.high)


def learning_rate_table(choices: Mapping[str, Mapping[str, Any]], metric: Metric) -> Table:
    """Return the values, of the metric that chose, of every learning rate that was tried at one place of the grid."""
    rates = sorted({float(rate) for choice in choices.values() for rate in choice["validation"]})
    rows = []
    for arm, choice in choices.items():
        row = [Cell(arm, arm=arm)]
        tried = {float(rate): values for rate, values in choice["validation"].items()}
        for rate in rates:
            values = [value for value in tried.get(rate, []) if value is not None]
            numbers = [value for value in values if math.isfinite(value)]
            taken = choice.get("chosen") is not None and rate == float(choice["chosen"])
            mean = metric.factor * math.fsum(numbers) / len(numbers) if numbers else math.nan
            text = number(mean, significant(mean)) if numbers else ""
            lost = f"{len(values) - len(numbers)} of {len(values)} diverged" if len(numbers) < len(values) else ""
            notes = ["chosen" if taken else "", lost]
            row.append(Cell(text, ", ".join(filter(None, notes)), "gain" if taken else ""))
        row.append(Cell(_over_the_next(choice, metric)))
        rows.append(row)
    return Table(["arm", *(f"{metric.label} at {rate:g}" for rate in rates), "chosen − next best"], rows)


def _over_the_next(choice: Mapping[str, Any], metric: Metric) -> str:
    """Return the chosen rate's difference to the next best, paired by seed, of the rates at which no run diverged."""
    known = {
        float(rate): [metric.factor * value for value in values]
        for rate, values in choice["validation"].items()
        if values and None not in values and all(map(math.isfinite, values))
    }
    ours = known.pop(float(choice["chosen"]), None) if choice.get("chosen") is not None else None
    if ours is None or not known:
        return ""
    sign = -1.0 if metric.mode == "min" else 1.0
    theirs = max(known.values(), key=lambda values: sign * math.fsum(values) / len(values))
    found = t_interval([one - other for one, other in zip(ours, theirs, strict=False)])
    width = 0.0 if found.has_no_width else found.half_width  # a digit of it, where it is narrow
    return interval_text(found, max(significant(found.mean, 2), significant(width, 1)), signed=True)


def at_an_end(choices: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the arms whose chosen learning rate is the least or the largest of several that were tried."""
    tried = {arm: sorted(map(float, each["validation"])) for arm, each in choices.items()}
    ends = {arm: (rates[0], rates[-1]) for arm, rates in tried.items() if len(rates) > 1}
    return [arm for arm, each in choices.items() if each["chosen"] in ends.get(arm, ())]


def decimals(found: PlaceResult) -> int:
    """Return how many decimals a table shows: two digits of a typical half width; one decimal of a percentage.

    A wide interval hides neither a difference below ten, which has a decimal (below one, two), nor a narrow interval,
    which has a digit.
    An interval of fewer than three seeds is not shown, and says nothing.
    """
    intervals = [each.interval for each in found.competing if each.interval is not None]
    values = [arm.value for arm in found.arms if arm.value is not None]
    largest = max((abs(i.mean) for i in intervals if i.mean), default=0.0)
    largest = largest or max((abs(value.mean) for value in values), default=1.0)
    known = [i for i in intervals or values if i.samples >= FEWEST_FOR_INTERVAL and not i.has_no_width]
    widths = [i.half_width for i in known if i.half_width < math.inf]
    digits = significant(largest, 3 if all(i.samples == 1 for i in intervals or values) else 2)
    if widths:
        typical = 1 - math.floor(math.log10(median(widths)))
        small = significant(largest, 2) if largest else typical
        digits = max(
            typical, min(small, 1 if found.metric.factor == 100 else 2), min(significant(min(widths), 1), typical + 2)
        )
    return min(max(digits, 1), 2) if found.metric.factor == 100 else shown(digits)


def no_value(arm: ArmResult) -> str:
    """Return why an arm has no value: its seeds diverged, or the runs of every learning rate diverged or failed."""
    if arm.no_rate is None or not arm.no_rate.failed:
        return "diverged"
    return "diverged or failed" if arm.no_rate.diverged else "failed"


def diverged_text(arm: ArmResult) -> str:
    """Return how many seeds diverged, ``2 of 4 diverged``; empty where none did.

    Of an arm without a learning rate, how many runs of all of them diverged, and how many failed.
    """
    if arm.no_rate is not None:
        counts = [(arm.no_rate.diverged, "diverged"), (arm.no_rate.failed, "failed")]
        return ", ".join(f"{number} of {arm.no_rate.runs} runs {how}" for number, how in counts if number)
    return f"{len(arm.diverged)} of {arm.seeds} diverged" if arm.diverged else ""


def kept_text(arm: ArmResult) -> str:
    """Return how many seeds a mean stands on, where others ended in no number; empty where none did."""
    return f"of the {len(arm.by_seed)} with a number" if arm.by_seed and arm.lost else ""


def threshold_text(found: PlaceResult, on_validation: bool = False) -> str:
    """Return what a run has to reach: ``test accuracy ≥ 95 %``, or the same on the validation split."""
    sign = "≤" if found.metric.mode == "min" else "≥"
    words = Metric(found.metric.on_validation).words if on_validation else found.metric.words
    return f"{words} {sign} {found.threshold:g}{found.metric.percent}"


def share_text(share: Share | Times) -> str:
    """Return a count: ``3 of 5``."""
    return f"{share.count} of {share.runs}"


def _verdict_cell(gain: str, structure: str, decisive: list[str]) -> Cell:
    kind = {"shown": "gain", "refuted": "loss"}.get(structure, "open")
    return Cell(f"{gain}; {structure}", ", ".join(decisive), kind) if gain else Cell("")


def _median_cell(times: Times | None) -> Cell:
    if times is None:
        return Cell("")
    if math.isinf(times.median):
        return Cell("fewer than half succeed")
    last = max(times.first, default=0.0)  # up to it, steps are bounds from above
    low = steps_text(times.low) if times.low > last or not times.first else ""
    high = steps_text(times.high) if math.isfinite(times.high) else ""
    notes = [f"{low} to {high}" if low and high else f"{low} or more" if low else f"up to {high}" if high else ""]
    notes += [f"{len(times.first)} of {times.runs} at or before the first evaluation"] if times.first else []
    bound = "≤ " * bool(times.first and times.median <= last)
    return Cell(bound + steps_text(times.median), "; ".join(filter(None, notes)))


def _value_cells(found: PlaceResult) -> Callable[[ArmResult], Cell]:
    """Return what writes the mean of an arm's final values; where they are all or nothing, how many have it."""
    digits, fewer, solved = decimals(found), fewer_seeds(found), dict[str, str]()
    if (threshold := all_or_nothing(found)) is not None:
        (shares,) = count_successes([found], threshold)
        solved = {arm.name: f"{share_text(arm.share)} with {threshold_text(shares)}" for arm in shares.arms}

    def cell(arm: ArmResult) -> Cell:
        if arm.value is None:
            return Cell(no_value(arm))
        runs, alone = arm.value.samples, solved.get(arm.name, "")
        if runs < FEWEST_FOR_INTERVAL:
            alone = ALONE if arm.seeds == 1 and arm.name not in fewer else "no interval"
        elif not alone and arm.value.has_no_width:
            alone = f"{runs} of {runs} at {_value(found, arm.value.mean, digits)}"
        elif not alone and math.isinf(arm.value.half_width):
            alone = "no interval: a run solves it or does not"
        notes = filter(None, [fewer.get(arm.name), kept_text(arm), alone])
        return Cell(interval_text(arm.value, digits), ", ".join(notes))

    return cell


def _rate_cell(arm: ArmResult) -> Cell:
    if arm.learning_rate is None:
        return Cell("none", "each had a seed without a number") if arm.no_rate else Cell("")
    return Cell(f"{arm.learning_rate:g}")


def _steps_cell(found: Reach | None) -> Cell:
    if found is None or not found.steps:
        return Cell("")
    reached = [steps for steps in found.steps.values() if steps is not None]
    if not reached:
        return Cell("not reached")
    note = ALONE if len(reached) == 1 else f"range {steps_text(min(reached))} to {steps_text(max(reached))}"
    if missing := len(found.steps) - len(reached):
        note = f"mean of {len(reached)}; not reached by {missing} of {len(found.steps)}"
    if soon := sum(bool(found.steps[seed]) for seed in found.first):  # before step 0 there is nothing
        note += f"; {soon} of {len(found.steps)} at or before the first evaluation"
    if found.passing:
        note += f"; {len(found.passing)} of {len(found.steps)} early, and worse again later"
    return Cell("≤ " * bool(soon) + steps_text(math.fsum(reached) / len(reached)), note)


def _speed_up_cell(arm: ArmResult, found: PlaceResult, digits: int) -> Cell:
    if arm.name == found.baseline or arm.reach is None or not arm.reach.steps:
        return Cell("")
    ratio = arm.reach.speed_up
    if ratio is None:
        return Cell("–")
    notes = [f"to {_value(found, found.metric.factor * arm.reach.shared, digits)}"]
    if arm.reach.evaluations < FEW_EVALUATIONS:
        notes.append(f"interpolated between {count(arm.reach.evaluations, 'evaluation')}")
    if ratio.samples < FEWEST_FOR_INTERVAL:
        notes.insert(0, ALONE if ratio.samples == 1 else "2 seeds, no interval")
    if arm.reach.bound:
        whose = arm.name if arm.reach.bound == "≥" else found.baseline
        often = f"{arm.reach.bounding} of {count(ratio.samples, 'run')} of {whose}"
        notes.append(f"a bound: {often} at or before the first evaluation")
    if arm.reach.bound or ratio.samples < FEWEST_FOR_INTERVAL:
        return Cell(f"{arm.reach.bound} {times(ratio.mean)}×".lstrip(), ", ".join(notes), "open")
    word = {True: "faster", False: "slower", None: "not told apart"}[arm.reach.is_faster]
    ends = f"{times(ratio.low)} to {times(ratio.high)}" if ratio.high < 1000 else f"from {times(ratio.low)}"
    adjusted = [] if arm.reach.adjusted is None else [f"adjusted {p_text(arm.reach.adjusted)}"]
    return Cell(
        f"{times(ratio.mean)}×",
        ", ".join([ends, *notes, word, *adjusted]),
        SPEEDS[arm.reach.is_faster],
    )
