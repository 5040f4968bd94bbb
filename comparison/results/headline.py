"""The tables of a comparison: never a bare mean."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from comparison.results.controls import find_controls, find_scrambled, verdicts
from comparison.results.decisions import Decision
from comparison.results.effects import (
    ArmResult,
    ArmSuccess,
    Contrast,
    Effects,
    all_or_nothing,
    effects,
    fewer_seeds,
    successes,
)
from comparison.results.folder import Manifest, chosen_learning_rates, find_runs, point_label
from comparison.results.metric import Metric
from comparison.results.paired import FEWEST_FOR_BOOTSTRAP, FEWEST_FOR_INTERVAL, bootstrap_interval
from comparison.results.records import load_results
from comparison.results.tables import Cell, Table, interval_text, number, p_text, shown, significant, times
from comparison.results.targets import Reach, Share, Times

if TYPE_CHECKING:
    import pandas as pd

ALONE = "1 seed, no interval"
TWO = "2 seeds, no interval: run at least 5"
UNSOLVED = "no interval: a run solves it or does not"


def look(folder: str | os.PathLike[str], manifest: Manifest) -> list[Effects]:
    """Return what the complete runs of a comparison say, at every place of the grid, with the controls that it has."""
    runs = find_runs(folder)
    controls, scrambled = find_controls(manifest, runs), find_scrambled(manifest, runs)
    choices = chosen_learning_rates(folder)
    return effects(load_results(folder), manifest, controls, choices=choices, scrambled=scrambled)


def headline(
    folder_or_results: str | os.PathLike[str] | pd.DataFrame,
    manifest: Manifest,
    controls: Mapping[str, str] | None = None,
    curves: pd.DataFrame | None = None,
    scrambled: Mapping[str, str] | None = None,
) -> str:
    """Return the headline table in Markdown, one per place of the grid.

    Args:
        folder_or_results: of the comparison, or what ``load_results`` gave of it.
        manifest: of the comparison.
        controls: arm → its same-positions control; those of the manifest when None.
        curves: as ``load_curves`` gives them; adds the steps to the baseline's final value.
        scrambled: arm → the arm that is the same initialization scrambled.
    """
    results, choices = folder_or_results, {}
    if isinstance(results, (str, os.PathLike)):
        results, choices = load_results(results), chosen_learning_rates(results)
    controls = manifest["controls"] if controls is None else controls
    return headline_tables(effects(results, manifest, controls, curves, choices, scrambled))


def headline_tables(found: Sequence[Effects]) -> str:
    """Return the headline table of every place of the grid in Markdown."""
    parts = []
    for each in found:
        title = [f"**{point_label(each.point)}**"] if len(found) > 1 else []
        text = headline_table(each).markdown() if each.arms else f"no complete run with {each.metric.name} yet"
        parts.append("\n\n".join([*title, text]))
    return "\n\n".join(parts)


def headline_table(found: Effects) -> Table:
    """Return the headline table of one place of the grid, a row per arm: of means, or of runs that succeed."""
    counted, digits = found.threshold is not None, 0 if found.threshold is not None else decimals(found)
    to_controls = {"control": "its control", "scrambled": "itself scrambled"}
    to_controls = {to: name for to, name in to_controls.items() if any(getattr(arm, to) for arm in found.arms)}
    names = [found.baseline, *to_controls.values()]
    with_rates = not counted and any(arm.learning_rate is not None or arm.no_rate for arm in found.arms)
    with_steps = not counted and found.target is not None and not found.at_once
    with_times = counted and any(arm.times for arm in found.arms)
    if counted:
        columns = ["arm", f"runs with {threshold_text(found)}", *(f"against {name}" for name in names)]
    else:
        columns = ["arm", "seeds", *(["learning rate"] if with_rates else [])]
        columns += [f"{found.metric.label}, {found.metric.better}", *(f"− {name} (paired)" for name in names)]
    columns += ["gain; due to structure"] if (said := verdicts(found)) else []
    columns += [f"steps to {target_text(found, digits)}", "speed-up"] if with_steps else []
    columns += ["steps until half have it"] if with_times else []
    rows, fewer, solved = [], {} if counted else fewer_seeds(found), dict[str, str]()
    if not counted and (threshold := all_or_nothing(found)) is not None:
        shares = successes(found, threshold)
        solved = {arm.name: f"{share_text(arm.share)} with {threshold_text(shares)}" for arm in shares.arms}
    for arm in found.arms:
        row = [Cell(arm.name, arm=arm.name)]
        if counted:
            interval = f"{number(100 * arm.share.low, 0)} to {number(100 * arm.share.high, 0)} %"
            row.append(Cell(share_text(arm.share), interval))
        else:
            row.append(Cell(str(arm.seeds), diverged_text(arm)))
            row += [_rate_cell(arm)] if with_rates else []
            row.append(_value_cell(arm, found, digits, fewer.get(arm.name, ""), solved.get(arm.name, "")))
        cells = [_contrast_cell(arm, to) if counted else effect_cell(arm, found, digits, to) for to in to_controls]
        first = _contrast_cell(arm) if counted else effect_cell(arm, found, digits)
        row += [Cell("baseline") if arm.name == found.baseline else first, *cells]
        row += [_verdict_cell(*said.get(arm.name, ("", "", [])))] if said else []
        row += [_steps_cell(arm.reach), _speed_up_cell(arm, found, digits)] if with_steps else []
        row += [_median_cell(arm.times)] if with_times else []
        rows.append(row)
    return Table(columns, rows)


def target_text(found: Effects, digits: int) -> str:
    """Return what is to be reached, with its unit and its split."""
    split, _, name = found.metric.on_validation.partition("/")
    return f"{_value(found, found.target or 0.0, digits)}{f' ({split})' if name else ''}"


def _value(found: Effects, value: float, digits: int) -> str:
    return f"{number(value, digits)}{' %' if found.metric.factor == 100 else ''}"


def effect_cell(arm: ArmResult, found: Effects, digits: int, to: str = "baseline") -> Cell:
    """Return a paired difference with its interval; of one to a control it says what was subtracted."""
    effect, name = getattr(arm, to), to != "baseline"
    if effect is None:
        return Cell("" if name else no_value(arm) if arm.value is None else "nothing paired")
    interval, notes = effect.interval, []
    kind = {True: "gain", False: "loss", None: "open"}[effect.is_gain]
    if name:
        notes.append(f"− {effect.reference}")
    if interval.samples == 1:
        notes.append(ALONE if arm.seeds == 1 else "1 pair, no interval")
    elif interval.samples < FEWEST_FOR_INTERVAL and effect.decision is None and arm.seeds == interval.samples:
        notes.append(TWO)
    elif interval.samples != arm.seeds:
        notes.append(f"{interval.samples} pairs")
    if effect.decision is not None:
        notes.append(decision_text(effect.decision, digits))
    if interval.samples > 1 and interval.has_no_width:
        same = "the same difference in all seeds: no t-test applies"
        notes.append(same if interval.mean else "equal in all seeds")
    elif not name and arm.is_control:
        notes.append("a control, not judged")
    elif effect.adjusted is not None and found.family > 1:
        notes.append(f"adjusted {p_text(effect.adjusted)}")
    if interval.samples >= FEWEST_FOR_BOOTSTRAP and effect.decision is None:
        again = bootstrap_interval(list(effect.by_seed.values()))
        notes.append(f"bootstrap {number(again.low, digits, signed=True)} to {number(again.high, digits, signed=True)}")
    return Cell(interval_text(interval, digits, signed=True), ", ".join(notes), kind)


def decision_text(decision: Decision, digits: int) -> str:
    """Return a decision in words: ``better``, ``equivalent within 0.5``, ``undecided, about 60 seeds would decide``."""
    if decision.within is not None:
        return f"equivalent within {number(decision.within, digits)}"
    needed = f", about {decision.needed:,} seeds would decide" if decision.needed else ""
    return f"{decision.kind}{needed}"


def learning_rate_table(choices: Mapping[str, Mapping[str, Any]], metric: Metric) -> Table:
    """Return the validation values of every learning rate that was tried at one place of the grid."""
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
        rows.append(row)
    words = Metric(metric.on_validation, metric.mode).label
    return Table(["arm", *(f"{words} at {rate:g}" for rate in rates)], rows)


def decimals(found: Effects) -> int:
    """Return how many decimals a table shows: two digits of a typical half width; one decimal of a percentage."""
    intervals = [effect.interval for arm in found.arms for effect in arm.differences]
    values = [arm.value for arm in found.arms if arm.value is not None]
    widths = [i.half_width for i in intervals or values if 0 < i.half_width < math.inf]
    largest = max((abs(i.mean) for i in intervals if i.mean), default=0.0)
    largest = largest or max((abs(value.mean) for value in values), default=1.0)
    digits = 1 - math.floor(math.log10(median(widths))) if widths else significant(largest)
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


def threshold_text(found: Effects) -> str:
    """Return what a run has to reach: ``test accuracy ≥ 95 %``."""
    sign = "≤" if found.metric.mode == "min" else "≥"
    return f"{found.metric.words} {sign} {found.threshold:g}{' %' if found.metric.factor == 100 else ''}"


def share_text(share: Share) -> str:
    """Return a count: ``3 of 5``."""
    return f"{share.count} of {share.runs}"


def _verdict_cell(gain: str, structure: str, decisive: list[str]) -> Cell:
    kind = {"shown": "gain", "refuted": "loss"}.get(structure, "open")
    return Cell(f"{gain}; {structure}", ", ".join(decisive), kind) if gain else Cell("")


def _contrast_cell(arm: ArmSuccess, to: str = "baseline") -> Cell:
    found: Contrast | None = getattr(arm, to)
    if found is None:
        return Cell("")
    if to == "baseline" and arm.is_control:
        return Cell("", "a control, not judged")
    word = {True: "more often", False: "less often", None: "not told apart"}[found.is_gain]
    kind = {True: "gain", False: "loss", None: "open"}[found.is_gain]
    against = [f"against {found.reference}"] if to != "baseline" else []
    return Cell(word, ", ".join([*against, f"adjusted {p_text(found.adjusted)}"]), kind)


def _median_cell(times: Times | None) -> Cell:
    if times is None:
        return Cell("")
    if math.isinf(times.median):
        return Cell("fewer than half succeed")
    ends = f"to {times.high:,.0f}" if math.isfinite(times.high) else "or more"
    return Cell(f"{times.median:,.0f}", f"{times.low:,.0f} {ends}")


def _value_cell(arm: ArmResult, found: Effects, digits: int, fewer: str, solved: str) -> Cell:
    if arm.value is None:
        return Cell(no_value(arm))
    kept = f"of the {len(arm.by_seed)} with a number" if arm.lost else ""
    runs, alone = arm.value.samples, ""
    if runs < FEWEST_FOR_INTERVAL:
        alone = ALONE if arm.seeds == 1 and not fewer else "no interval"
    elif solved:
        alone = solved
    elif arm.value.has_no_width:
        alone = f"{runs} of {runs} at {_value(found, arm.value.mean, digits)}"
    elif math.isinf(arm.value.half_width):
        alone = UNSOLVED
    return Cell(interval_text(arm.value, digits), ", ".join(filter(None, [fewer, kept, alone])))


def _rate_cell(arm: ArmResult) -> Cell:
    if arm.learning_rate is None:
        return Cell("none", "each had a seed without a number") if arm.no_rate else Cell("")
    return Cell(f"{arm.learning_rate:g}")


def _steps_cell(found: Reach | None) -> Cell:
    if found is None or not found.steps:
        return Cell("")
    reached = found.reached
    if not reached:
        return Cell("not reached")
    mean = math.fsum(reached.values()) / len(reached)
    missing = len(found.steps) - len(reached)
    note = f"mean of {len(reached)}; not reached by {missing} of {len(found.steps)}" if missing else ""
    if not note and len(reached) == 1:
        note = ALONE
    elif not note:
        note = f"range {min(reached.values()):,.0f} to {max(reached.values()):,.0f}"
    return Cell(f"{mean:,.0f}", note)


def _speed_up_cell(arm: ArmResult, found: Effects, digits: int) -> Cell:
    if arm.name == found.baseline or arm.reach is None or not arm.reach.steps:
        return Cell("")
    ratio = arm.reach.speed_up
    if ratio is None:
        return Cell("–")
    notes = [f"to {_value(found, found.metric.factor * arm.reach.shared, digits)}"]
    if ratio.samples < FEWEST_FOR_INTERVAL:
        notes.insert(0, ALONE if ratio.samples == 1 else "2 seeds, no interval")
        return Cell(f"{times(ratio.mean)}×", ", ".join(notes), "open")
    word = {True: "faster", False: "slower", None: "not told apart"}[arm.reach.is_faster]
    ends = f"{times(ratio.low)} to {times(ratio.high)}" if ratio.high < 1000 else f"from {times(ratio.low)}"
    notes = [
        ends,
        *notes,
        word,
        *([f"adjusted {p_text(arm.reach.adjusted)}"] if arm.reach.adjusted is not None else []),
    ]
    return Cell(
        f"{times(ratio.mean)}×", ", ".join(notes), {True: "gain", False: "loss"}.get(arm.reach.is_faster, "open")
    )
