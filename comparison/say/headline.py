"""What a comparison says in text: the table of its result, and the few fixed sentences beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from comparison.contrasts.contrasts import BASELINE, Contrast, gain_and_structure
from comparison.contrasts.finals import ArmResult
from comparison.contrasts.place import PlaceResult
from comparison.contrasts.targets import Reach, steps_text
from comparison.intervals import FEWEST_FOR_INTERVAL
from comparison.runs.folder import point_label
from comparison.runs.metric import Metric
from comparison.tables import Cell, Table, count, number, p_text, significant, times

if TYPE_CHECKING:
    import pandas as pd

KINDS = {"better": "gain", "worse": "loss"}  # of a cell, by the verdict; all others are open
STRUCTURE = {"shown": "gain", "refuted": "loss"}  # the same of what controls leave of a gain
SPEEDS = {True: ("faster", "gain"), False: ("slower", "loss"), None: ("undecided", "open")}
NO_INTERVAL = "no interval: run at least 5 seeds"
SAME = "the same in all seeds: no t-test applies"
LEARNED = 0.005  # what more is better of: below it all results are shown as 0.00


def headline_tables(found: Sequence[PlaceResult]) -> str:
    """Return what is said of every place of the grid in Markdown: its tables, and what is to be known beside them."""
    parts = []
    for each in found:
        if each.point:
            parts.append(f"**{point_label(each.point)}**")
        if said := notice(each):
            parts.append(said)
        parts += [table.markdown() for table in result_tables(each)]
    return "\n\n".join(parts)


def notice(found: PlaceResult) -> str:
    """Return what is said of a place where no run is complete, or nothing has been learned; else an empty text."""
    if not found.arms:
        return f"No complete run has {found.metric.words} yet."
    values = [abs(value) for arm in found.arms for value in arm.by_seed.values()]
    learned = found.metric.mode == "min" or max(values, default=LEARNED) >= LEARNED
    return "" if learned else "Nothing has been learned yet: train longer."


def result_tables(found: PlaceResult) -> list[Table]:
    """Return the tables of a place of the grid that have rows: beside the baseline, and beside controls."""
    return [table for table in (headline_table(found), controls_table(found)) if table.rows]


def headline_table(found: PlaceResult) -> Table:
    """Return a row per arm, the baseline first: means and differences, or counts of runs that succeed."""
    metric, cells = f"{found.metric.label}, {found.metric.better}", _measured
    columns = ["arm", "seeds", metric, f"− {found.baseline} (paired)"]
    if found.threshold is not None:
        columns = ["arm", f"runs with {threshold_text(found)}", f"mean {metric}", f"against {found.baseline}"]
        cells = _counted
    said, rows = gain_and_structure(found.contrasts), []
    for arm in sorted(found.arms, key=lambda arm: arm.name != found.baseline):
        row = [Cell(arm.name, arm=arm.name), *cells(arm, found), baseline_cell(arm.name, found)]
        rows.append([*row, _verdict_cell(*said.get(arm.name, ("", "", [])))] if said else row)
    return Table([*columns, "gain; beyond its controls"] if said else columns, rows)


def _measured(arm: ArmResult, found: PlaceResult) -> list[Cell]:
    """Return how many seeds an arm has, and the mean of their final values."""
    seeds = Cell(str(arm.seeds), diverged_text(arm))
    if arm.value is None:
        return [seeds, Cell("–")]
    return [seeds, Cell(arm.value.text(decimals(found)), "" if arm.value.is_known else "no interval")]


def _counted(arm: ArmResult, found: PlaceResult) -> list[Cell]:
    """Return how many runs of an arm succeed, and the mean of their final values."""
    share = arm.share
    assert share is not None
    ends = f"{number(100 * share.low, 0)} to {number(100 * share.high, 0)} %"
    mean = "–" if arm.value is None else number(arm.value.mean, significant(arm.value.mean))
    return [Cell(f"{share.count} of {share.runs}", ends), Cell(mean)]


def controls_table(found: PlaceResult) -> Table:
    """Return a row per arm and control; none where there are no controls."""
    rows = []
    for each in found.contrasts:
        if each.role != BASELINE:
            control = Cell(each.reference, each.role, arm=each.reference)
            rows.append([Cell(each.arm, arm=each.arm), control, contrast_cell(each, found)])
    return Table(["arm", "control", "arm against control"], rows)


def speed_table(found: PlaceResult) -> Table:
    """Return how soon arms reach the baseline's final mean, and their speed-up; no rows without such a target."""
    if found.target is None or found.at_once:
        return Table([], [])
    rows: list[list[Cell]] = []
    steps = found.manifest.counted.rpartition(" ")[2]  # "optimizer steps" or "epochs"
    for arm in sorted(found.arms, key=lambda arm: arm.name != found.baseline):
        if arm.reach is not None:
            speed_up = Cell("") if arm.name == found.baseline else _speed_up_cell(arm.reach, found)
            rows.append([Cell(arm.name, arm=arm.name), _steps_cell(arm.reach), speed_up])
    target = f"{_value(found, found.target)} ({found.metric.on_validation})"
    return Table(["arm", f"{steps} to {target}", "speed-up"], rows)


def baseline_cell(arm: str, found: PlaceResult) -> Cell:
    """Return what an arm is beside the baseline."""
    each = found.to_baseline(arm)
    if each is not None:
        return contrast_cell(each, found)
    return Cell("baseline" if arm == found.baseline else "nothing paired")


def contrast_cell(each: Contrast, found: PlaceResult) -> Cell:
    """Return a difference with its interval, what is said of it, and the p of that; of counts the verdict alone."""
    kind = KINDS.get(each.verdict, "open")
    p = "" if each.adjusted is None else f"adjusted {p_text(each.adjusted)}"
    if each.interval is None:
        return Cell(each.verdict, p or each.reason, kind)
    digits = decimals(found)
    text, pairs = each.interval.text(digits, signed=True), count(each.pairs, "pair")
    if not each.is_judged:
        return Cell(text, f"{pairs}, not judged: {each.reason}", kind)
    if not each.interval.is_known and found.manifest.question is None:
        return Cell(text, f"{pairs}, {NO_INTERVAL if each.pairs < FEWEST_FOR_INTERVAL else SAME}", kind)
    return Cell(text, ", ".join(filter(None, [pairs, decision_text(each, found, digits), p])), kind)


def decision_text(each: Contrast, found: PlaceResult, digits: int) -> str:
    """Return a decision in words: ``better``, ``equivalent within 0.5``."""
    if each.verdict == "equivalent":
        assert each.interval is not None
        assert found.manifest.question is not None
        within = found.manifest.question.margin or max(-each.interval.low, each.interval.high)
        return f"equivalent within {number(within, digits)}"
    return each.verdict


def learning_rate_table(choices: Mapping[str, Mapping[str, Any]], metric: Metric) -> pd.DataFrame:
    """Return the means, of the metric that chose, of every learning rate that was tried at one place of the grid.

    NaN is the mean of a rate at which a run diverged or failed.
    """
    import pandas as pd

    rows = []
    for arm, choice in choices.items():
        values = pd.DataFrame.from_dict(choice["validation"], orient="index", dtype=float) * metric.factor
        values = values.set_axis(values.index.astype(float)).sort_index()  # (rates, seeds)
        means = values.replace([math.inf, -math.inf], math.nan).mean(axis=1, skipna=False)
        row: dict[str, Any] = {"arm": arm} | {f"{metric.label} at {rate:g}": mean for rate, mean in means.items()}
        if choice["chosen"] is not None:
            rate = float(choice["chosen"])
            row["chosen"] = f"{rate:g}"
            row["at an end of those tried"] = "yes" if rate in (values.index[0], values.index[-1]) else ""
        rows.append(row)
    return pd.DataFrame(rows)


def decimals(found: PlaceResult) -> int:
    """Return how many decimals a table shows: two digits of a typical half width; one or two of a percentage.

    A narrow interval has a digit too. Where there are no intervals, there are three digits of the means.
    """
    intervals = [each.interval for each in found.competing if each.interval is not None]
    intervals = intervals or [arm.value for arm in found.arms if arm.value is not None]
    known = [each.half_width for each in intervals if each.is_known]
    sizes = known or [abs(each.mean) / 10 for each in intervals] or [1.0]
    typical = significant(median(sizes), 2)
    digits = max(typical, min(significant(min(sizes), 1), typical + 2))
    return min(max(digits, 1), 2) if found.metric.factor == 100 else digits


def diverged_text(arm: ArmResult) -> str:
    """Return how many seeds diverged, ``2 of 4 diverged``; empty where none did."""
    if arm.without_rate:
        return "no learning rate: at each a run diverged or failed"
    return f"{len(arm.diverged)} of {arm.seeds} diverged" if arm.diverged else ""


def threshold_text(found: PlaceResult) -> str:
    """Return what a run has to reach: ``test accuracy ≥ 95 %``."""
    sign = "≤" if found.metric.mode == "min" else "≥"
    return f"{found.metric.words} {sign} {found.threshold:g}{found.metric.percent}"


def _value(found: PlaceResult, value: float) -> str:
    return f"{number(value, decimals(found))}{found.metric.percent}"


def _verdict_cell(gain: str, structure: str, decisive: Sequence[str]) -> Cell:
    return Cell(f"{gain}; {structure}", ", ".join(decisive), STRUCTURE.get(structure, "open")) if gain else Cell("")


def _steps_cell(found: Reach) -> Cell:
    """Return the mean of the steps to the target; ≤ where a run is there at its first evaluation."""
    reached = [steps for steps in found.steps.values() if steps is not None]
    if not reached:
        return Cell("not reached")
    ends = f"{steps_text(min(reached))} to {steps_text(max(reached))}"
    text = "≤ " * bool(found.first) + steps_text(math.fsum(reached) / len(reached))
    return Cell(text, f"{ends}, in {len(reached)} of {len(found.steps)} runs")


def _speed_up_cell(found: Reach, place: PlaceResult) -> Cell:
    """Return how much faster an arm is than the baseline, with its interval and what is said of it."""
    ratio = found.speed_up
    if ratio is None:
        return Cell("–")
    to = f"to {_value(place, place.metric.factor * found.shared)}"
    if found.adjusted is None:
        return Cell(f"{times(ratio.mean)}×", f"{NO_INTERVAL}, {to}", "open")
    word, kind = SPEEDS[found.is_faster]
    ends = f"{times(ratio.low)} to {times(ratio.high)}"
    return Cell(f"{times(ratio.mean)}×", f"{ends}, {to}, {word}, adjusted {p_text(found.adjusted)}", kind)
