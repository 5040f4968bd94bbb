"""What a comparison says in text: the table of its result, and the few fixed sentences beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from comparison.results.contrasts import BASELINE, DIVERGED, Contrast, gain_and_structure
from comparison.results.finals import ArmResult, ArmSuccess
from comparison.results.folder import Manifest, chosen_learning_rates, point_label
from comparison.results.metric import Metric
from comparison.results.paired import FEWEST_FOR_INTERVAL, t_interval
from comparison.results.place import PlaceResult, all_or_nothing, fewer_seeds, find_places
from comparison.results.records import load_results
from comparison.results.tables import Cell, Table, count, interval_text, number, p_text, significant, times
from comparison.results.targets import Reach, Times, steps_text

KINDS = {"better": "gain", "worse": "loss"}  # of a cell, by the verdict; all others are open
STRUCTURE = {"shown": "gain", "refuted": "loss"}  # the same of what controls leave of a gain
SPEEDS = {True: ("faster", "gain"), False: ("slower", "loss"), None: ("undecided", "open")}
NO_INTERVAL = "no interval: run at least 5 seeds"
SOLVED = "no interval: a run solves it or does not"
SAME = "the same in all seeds: no t-test applies"
NOTHING = "No complete run has {metric} yet."
NOT_LEARNED = "Nothing has been learned yet: train longer."
ALL_OR_NOTHING = (
    "Results look all or nothing, so a mean describes no run: --success {threshold:g} counts the runs that succeed."
)


def look(folder: str | os.PathLike[str], manifest: Manifest) -> list[PlaceResult]:
    """Return what the complete runs of a comparison say, at every place of the grid."""
    return find_places(load_results(folder), manifest, choices=chosen_learning_rates(folder))


def headline_tables(found: Sequence[PlaceResult]) -> str:
    """Return what is said of every place of the grid in Markdown: its tables, and what is to be known beside them."""
    parts = []
    for each in found:
        if each.point:
            parts.append(f"**{point_label(each.point)}**")
        parts += notices(each)
        parts += [table.markdown() for table in result_tables(each)]
    return "\n\n".join(parts)


def notices(found: PlaceResult) -> list[str]:
    """Return the fixed sentences that hold of a place of the grid."""
    if not found.arms:
        return [NOTHING.format(metric=found.metric.words)]
    if found.threshold is not None:
        return []
    values = [value for arm in found.arms for value in arm.by_seed.values()]
    if values and found.metric.mode == "max" and all(abs(value) < 0.005 for value in values):
        return [NOT_LEARNED]
    threshold = all_or_nothing(found)
    return [] if threshold is None else [ALL_OR_NOTHING.format(threshold=threshold)]


def result_tables(found: PlaceResult) -> list[Table]:
    """Return the tables of a place of the grid that have rows: beside the baseline, and beside controls."""
    return [table for table in (headline_table(found), controls_table(found)) if table.rows]


def headline_table(found: PlaceResult) -> Table:
    """Return a row per arm, the baseline first: means and differences, or counts of runs that succeed."""
    arms = sorted(found.arms, key=lambda arm: arm.name != found.baseline)
    columns = {"arm": [Cell(arm.name, arm=arm.name) for arm in arms]}
    means = {arm.name: arm for arm in (found.means or found).arms}
    label = f"{found.metric.label}, {found.metric.better}"
    digits = decimals(found.means or found)
    if found.threshold is None:
        fewer = fewer_seeds(found)
        columns["seeds"] = [Cell(fewer.get(arm.name, str(arm.seeds)), diverged_text(arm)) for arm in arms]
        if any(arm.learning_rate is not None or arm.no_rate for arm in arms):
            columns["learning rate"] = [_rate_cell(arm) for arm in arms]
        columns[label] = [_value_cell(arm, digits) for arm in arms]
        columns[f"− {found.baseline} (paired)"] = [baseline_cell(arm, found, digits) for arm in arms]
    else:
        columns[f"runs with {threshold_text(found)}"] = [_share_cell(arm) for arm in arms]
        columns[f"against {found.baseline}"] = [baseline_cell(arm, found, digits) for arm in arms]
        columns[f"mean {label}"] = [Cell(_value_cell(means[arm.name], digits).text) for arm in arms]
    said = gain_and_structure(found.contrasts)
    if said:
        columns["gain; due to structure"] = [_verdict_cell(*said.get(arm.name, ("", "", []))) for arm in arms]
    if found.threshold is not None and any(arm.times for arm in arms):
        columns[f"{_steps(found)} until half succeed"] = [_median_cell(arm.times) for arm in arms]
    return Table(list(columns), list(zip(*columns.values(), strict=True)))


def controls_table(found: PlaceResult) -> Table:
    """Return a row per arm and control; none where there are no controls."""
    digits = decimals(found.means or found)
    rows = []
    for each in found.contrasts:
        if each.role != BASELINE:
            control = Cell(each.reference, each.role, arm=each.reference)
            rows.append([Cell(each.arm, arm=each.arm), control, contrast_cell(each, found, digits)])
    return Table(["arm", "control", "arm − control (paired)" if found.threshold is None else "compared"], rows)


def speed_table(found: PlaceResult) -> Table:
    """Return how soon arms reach the baseline's final mean, and their speed-up; no rows without such a target."""
    if found.target is None or found.at_once:
        return Table([], [])
    digits = decimals(found)
    rows = []
    for arm in sorted(found.arms, key=lambda arm: arm.name != found.baseline):
        speed_up = Cell("") if arm.name == found.baseline else _speed_up_cell(arm.reach, found, digits)
        rows.append([Cell(arm.name, arm=arm.name), _steps_cell(arm.reach), speed_up])
    split = " (val)" if found.metric.on_validation.startswith("val/") else ""
    target = f"{number(found.target, digits)}{found.metric.percent}{split}"
    return Table(["arm", f"{_steps(found)} to {target}", "speed-up"], rows)


def baseline_cell(arm: ArmResult | ArmSuccess, found: PlaceResult, digits: int) -> Cell:
    """Return what an arm is beside the baseline."""
    if arm.name == found.baseline:
        return Cell("baseline")
    each = found.to_baseline(arm.name)
    return Cell("nothing paired") if each is None else contrast_cell(each, found, digits)


def contrast_cell(each: Contrast, found: PlaceResult, digits: int) -> Cell:
    """Return a difference with its interval, what is said of it, and the p of that."""
    kind, interval = KINDS.get(each.verdict, "open"), each.interval
    if interval is None:
        p = "" if each.adjusted is None else f"adjusted {p_text(each.adjusted)}"
        return Cell(each.verdict if each.is_judged else "not judged", p or each.reason, kind)
    text, notes = interval_text(interval, digits, signed=True), []
    if each.pairs != next(arm.seeds for arm in found.arms if arm.name == each.arm):
        notes.append(count(each.pairs, "pair"))
    if not each.is_judged:
        notes.append("not judged" if each.reason == DIVERGED else each.reason)
    elif each.pairs < FEWEST_FOR_INTERVAL and found.question is None:
        notes.append(NO_INTERVAL)
    elif interval.has_no_width:
        notes.append(SAME)
    else:
        notes.append(decision_text(each, found, digits))
        notes += [] if each.adjusted is None else [f"adjusted {p_text(each.adjusted)}"]
    return Cell(text, ", ".join(notes), kind)


def decision_text(each: Contrast, found: PlaceResult, digits: int) -> str:
    """Return a decision in words: ``better``, ``equivalent within 0.5``, ``undecided, about 20 seeds would decide``."""
    if each.verdict == "equivalent":
        assert each.interval is not None
        assert found.question is not None
        within = found.question.margin or max(-each.interval.low, each.interval.high)
        return f"equivalent within {number(within, digits)}"
    needed = f", about {each.needed} seeds would decide" if each.needed else ""
    return f"{each.verdict}{needed}"


def learning_rate_table(choices: Mapping[str, Mapping[str, Any]], metric: Metric) -> Table:
    """Return the values, of the metric that chose, of every learning rate that was tried at one place of the grid."""
    rates = sorted({float(rate) for choice in choices.values() for rate in choice["validation"]})
    rows = []
    for arm, choice in choices.items():
        row = [Cell(arm, arm=arm)]
        tried = {float(rate): values for rate, values in choice["validation"].items()}
        for rate in rates:
            values = [value for value in tried.get(rate, []) if value is not None]
            numbers = [metric.factor * value for value in values if math.isfinite(value)]
            is_chosen = choice.get("chosen") is not None and rate == float(choice["chosen"])
            notes = []
            if is_chosen:
                notes.append("chosen")
            if is_chosen and len(tried) > 1 and rate in (min(tried), max(tried)):
                notes.append("at an end of those tried")
            if len(numbers) < len(values):
                notes.append(f"{len(values) - len(numbers)} of {len(values)} diverged")
            mean = math.fsum(numbers) / len(numbers) if numbers else math.nan
            text = number(mean, significant(mean)) if numbers else ""
            row.append(Cell(text, ", ".join(notes), "gain" if is_chosen else ""))
        rows.append([*row, Cell(_over_the_next(choice, metric))])
    return Table(["arm", *(f"{metric.label} at {rate:g}" for rate in rates), "chosen − next best"], rows)


def _over_the_next(choice: Mapping[str, Any], metric: Metric) -> str:
    """Return the chosen rate's difference to the next best, paired by seed, of the rates at which no run diverged."""
    known = {}
    for rate, values in choice["validation"].items():
        if values and None not in values and all(map(math.isfinite, values)):
            known[float(rate)] = [metric.factor * value for value in values]
    ours = known.pop(float(choice["chosen"]), None) if choice.get("chosen") is not None else None
    if ours is None or not known:
        return ""
    sign = -1.0 if metric.mode == "min" else 1.0
    theirs = max(known.values(), key=lambda values: sign * math.fsum(values) / len(values))
    found = t_interval([one - other for one, other in zip(ours, theirs, strict=False)])
    width = 0.0 if found.has_no_width else found.half_width  # a digit of it, where it is narrow
    return interval_text(found, max(significant(found.mean, 2), significant(width, 1)), signed=True)


def decimals(found: PlaceResult) -> int:
    """Return how many decimals a table shows: two digits of a typical half width; one or two of a percentage.

    A narrow interval has a digit too. An interval of fewer than three seeds is not shown, and says nothing.
    """
    differences = [each.interval for each in found.competing if each.interval is not None]
    intervals = differences or [arm.value for arm in found.arms if arm.value is not None]
    widths = []
    for each in intervals:
        if each.samples >= FEWEST_FOR_INTERVAL and not each.has_no_width and each.half_width < math.inf:
            widths.append(each.half_width)
    if widths:
        typical = significant(median(widths), 2)
        digits = max(typical, min(significant(min(widths), 1), typical + 2))
    else:
        digits = significant(max((abs(each.mean) for each in intervals), default=1.0), 2 if differences else 3)
    return min(max(digits, 1), 2) if found.metric.factor == 100 else digits


def diverged_text(arm: ArmResult) -> str:
    """Return how many seeds diverged, ``2 of 4 diverged``; empty where none did.

    Of an arm without a learning rate, how many runs of all of them diverged, and how many failed.
    """
    if arm.no_rate is not None:
        counts = [(arm.no_rate.diverged, "diverged"), (arm.no_rate.failed, "failed")]
        return ", ".join(f"{number} of {arm.no_rate.runs} runs {how}" for number, how in counts if number)
    return f"{len(arm.diverged)} of {arm.seeds} diverged" if arm.diverged else ""


def threshold_text(found: PlaceResult) -> str:
    """Return what a run has to reach: ``test accuracy ≥ 95 %``."""
    sign = "≤" if found.metric.mode == "min" else "≥"
    return f"{found.metric.words} {sign} {found.threshold:g}{found.metric.percent}"


def _steps(found: PlaceResult) -> str:
    return found.counted.rpartition(" ")[2]  # "optimizer steps" or "epochs"


def _value_cell(arm: ArmResult, digits: int) -> Cell:
    """Return the mean of an arm's final values, and why it has no interval."""
    if arm.value is None:
        return Cell("failed" if arm.no_rate and not arm.no_rate.diverged else "diverged")
    note = ""
    if arm.value.samples < FEWEST_FOR_INTERVAL:
        note = "no interval"
    elif arm.value.has_no_width:
        note = "equal in all seeds"
    elif math.isinf(arm.value.half_width):
        note = SOLVED
    return Cell(interval_text(arm.value, digits), note)


def _rate_cell(arm: ArmResult) -> Cell:
    if arm.no_rate:
        return Cell("none", "each had a seed without a number")
    return Cell("" if arm.learning_rate is None else f"{arm.learning_rate:g}")


def _share_cell(arm: ArmSuccess) -> Cell:
    share = arm.share
    return Cell(f"{share.count} of {share.runs}", f"{number(100 * share.low, 0)} to {number(100 * share.high, 0)} %")


def _verdict_cell(gain: str, structure: str, decisive: Sequence[str]) -> Cell:
    return Cell(f"{gain}; {structure}", ", ".join(decisive), STRUCTURE.get(structure, "open")) if gain else Cell("")


def _median_cell(found: Times | None) -> Cell:
    """Return the steps by which half of the runs have succeeded, with their interval."""
    if found is None:
        return Cell("")
    if math.isinf(found.median):
        return Cell("fewer than half succeed")
    last = max(found.first, default=0.0)  # up to it, steps are bounds from above
    low = steps_text(found.low) if found.low > last else "0"
    high = f"to {steps_text(found.high)}" if math.isfinite(found.high) else "or more"
    return Cell("≤ " * (found.median <= last) + steps_text(found.median), f"{low} {high}")


def _steps_cell(found: Reach | None) -> Cell:
    """Return the mean of the steps to the target, and of how many runs that says little."""
    if found is None or not found.steps:
        return Cell("")
    reached = [steps for steps in found.steps.values() if steps is not None]
    if not reached:
        return Cell("not reached")
    soon = sum(bool(found.steps[seed]) for seed in found.first)  # before step 0 there is nothing
    notes = [f"range {steps_text(min(reached))} to {steps_text(max(reached))}"]
    for counted, what in (
        (len(found.steps) - len(reached), "never"),
        (soon, "at or before the first evaluation"),
        (len(found.passing), "early, and worse again later"),
    ):
        if counted:
            notes.append(f"{counted} of {len(found.steps)} {what}")
    return Cell("≤ " * bool(soon) + steps_text(math.fsum(reached) / len(reached)), ", ".join(notes))


def _speed_up_cell(found: Reach | None, place: PlaceResult, digits: int) -> Cell:
    """Return how much faster an arm is than the baseline, with its interval and what is said of it."""
    if found is None or found.speed_up is None:
        return Cell("–")
    ratio = found.speed_up
    to = f"to {number(place.metric.factor * found.shared, digits)}{place.metric.percent}"
    if found.bound:
        return Cell(f"{found.bound} {times(ratio.mean)}×", f"a bound, {to}", "open")
    if ratio.samples < FEWEST_FOR_INTERVAL:
        return Cell(f"{times(ratio.mean)}×", f"{NO_INTERVAL}, {to}", "open")
    word, kind = SPEEDS[found.is_faster]
    p = "" if found.adjusted is None else f", adjusted {p_text(found.adjusted)}"
    return Cell(f"{times(ratio.mean)}×", f"{times(ratio.low)} to {times(ratio.high)}, {to}, {word}{p}", kind)
