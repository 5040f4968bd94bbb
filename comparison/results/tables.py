"""The tables of a comparison, as Markdown and as HTML: never a bare mean."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from comparison.results.comparable import fewer_seeds
from comparison.results.decisions import Decision
from comparison.results.effects import ArmResult, Effects, effects
from comparison.results.metric import Metric
from comparison.results.paired import FEWEST_FOR_BOOTSTRAP, FEWEST_FOR_INTERVAL, Interval, bootstrap_interval
from comparison.results.records import Manifest, chosen_learning_rates, load_results, point_label, points
from comparison.results.targets import Reach

if TYPE_CHECKING:
    import pandas as pd

ALONE = "1 seed, no interval"
TWO = "2 seeds, no interval: run at least 5"
MOST_DECIMALS = 8


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what it says.
        note: what it adds in smaller type.
        kind: ``"gain"``, ``"loss"`` or ``"open"`` (not told apart from zero); empty elsewhere.
        arm: of which arm it is the name.
    """

    text: str
    note: str = ""
    kind: str = ""
    arm: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a row of headings.

    Attributes:
        columns: the headings.
        rows: cells, as many per row as there are headings.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        cells = [[f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row] for row in self.rows]
        lines = [list(self.columns), ["---"] * len(self.columns), *cells]
        return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)

    def html(self, colors: Mapping[str, str] | None = None, kind: str = "") -> str:
        """Return the table in HTML.

        Args:
            colors: arm → CSS colour of the mark beside its name.
            kind: CSS class: ``"stacked"`` shows a row as a block where the page is narrow, ``"tight"`` takes no more
                width than the table needs.
        """
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in self.columns)
        known = colors or {}
        rows = ["".join(map(_html, row, self.columns, [known] * len(row))) for row in self.rows]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        shown = f' class="{kind}"' if kind else ""
        return f'<div class="scroll"><table{shown}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


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
    if controls is None:
        controls = manifest["controls"]
    found = effects(results, manifest, controls, curves, choices, scrambled)
    parts = []
    for each in found:
        title = [f"**{point_label(each.point)}**"] if len(points(manifest)) > 1 else []
        text = headline_table(each).markdown() if each.arms else f"no complete run with {each.metric.name} yet"
        parts.append("\n\n".join([*title, text]))
    return "\n\n".join(parts)


def headline_table(found: Effects) -> Table:
    """Return the headline table of one place of the grid: a row per arm."""
    digits = decimals(found)
    with_rates = any(arm.learning_rate is not None or arm.no_rate for arm in found.arms)
    controls = {"control": "− its control (paired)", "scrambled": "− itself scrambled (paired)"}
    controls = {to: text for to, text in controls.items() if any(getattr(arm, to) for arm in found.arms)}
    columns = ["arm", "seeds", *(["learning rate"] if with_rates else [])]
    columns += [f"{found.metric.label}, {found.metric.better}"]
    columns += [f"− {found.baseline} (paired)", *controls.values()]
    with_steps = found.target is not None and not found.at_once
    if with_steps:
        columns += [f"steps to {target_text(found, digits)}", "speed-up"]
    rows, fewer = [], fewer_seeds(found)
    for arm in found.arms:
        row = [Cell(arm.name, arm=arm.name), Cell(str(arm.seeds), diverged_text(arm))]
        row += [_rate(arm)] if with_rates else []
        row.append(_value(arm, digits, fewer.get(arm.name, "")))
        row.append(Cell("baseline") if arm.name == found.baseline else effect_cell(arm, found, digits))
        row += [effect_cell(arm, found, digits, to) for to in controls]
        row += [_steps(arm.reach), _speed_up(arm, found.baseline)] if with_steps else []
        rows.append(row)
    return Table(columns, rows)


def target_text(found: Effects, digits: int) -> str:
    """Return what is to be reached, with its unit and its split."""
    unit, (split, _, name) = " %" if found.metric.factor == 100 else "", found.metric.on_validation.partition("/")
    return f"{number(found.target or 0.0, digits)}{unit}{f' ({split})' if name else ''}"


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
    family = [each for each in found.arms if getattr(each, to) is not None]
    if interval.samples > 1 and interval.has_no_width:
        same = "the same difference in all seeds: no t-test applies"
        notes.append(same if interval.mean else "equal in all seeds")
    elif effect.adjusted is not None and len(family) > 1:
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


def interval_text(interval: Interval, digits: int, signed: bool = False) -> str:
    """Return ``mean ± half width``, both ends where the metric's range cuts it, the mean alone of one or two values."""
    mean = number(interval.mean, digits, signed)
    if math.isinf(interval.half_width) or interval.samples < FEWEST_FOR_INTERVAL:
        return mean
    if (
        abs(interval.high + interval.low - 2 * interval.mean) > 1e-6 * interval.half_width
    ):  # cut at an end of the metric
        return f"{mean} ({number(interval.low, digits, signed)} to {number(interval.high, digits, signed)})"
    return f"{mean} ± {number(interval.half_width, digits)}"


def difference_text(interval: Interval) -> str:
    """Return a difference in points with its sign, ``+1.2 ± 0.3``."""
    return interval_text(interval, 1, signed=True)


def number(value: float, digits: int, signed: bool = False) -> str:
    """Return a number with a real minus sign.

    Args:
        value: the number.
        digits: decimals; with more than 8, or where as many stand before the point that nobody counts them, it is
            written as a power of ten, down to the same decimal.
        signed: whether a plus is shown.
    """
    kind = f".{max(digits, 0)}f"
    if abs(digits) > MOST_DECIMALS and math.isfinite(value):
        kind = f".{max(digits + math.floor(math.log10(abs(value))), 0)}e" if value else ".0f"
    return f"{value:{'+' if signed else ''}{kind}}".replace("-", "−")


def decimals(found: Effects) -> int:
    """Return how many decimals a table shows: two digits of a typical half width; one decimal of a percentage."""
    intervals = [effect.interval for arm in found.arms for effect in arm.differences]
    values = [arm.value for arm in found.arms if arm.value is not None]
    widths = [i.half_width for i in intervals or values if 0 < i.half_width < math.inf]
    largest = max((abs(i.mean) for i in intervals if i.mean), default=0.0)
    largest = largest or max((abs(value.mean) for value in values), default=1.0)
    digits = 1 - math.floor(math.log10(median(widths))) if widths else significant(largest)
    return min(max(digits, 1), 2) if found.metric.factor == 100 else shown(digits)


def p_text(p: float) -> str:
    """Return a p-value for reading, ``p = 0.03``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def times(ratio: float) -> str:
    """Return a ratio with two digits, more where it has more before the point."""
    return f"{ratio:,.{min(max(significant(ratio, 2), 0), MOST_DECIMALS)}f}"


def significant(value: float, digits: int = 3) -> int:
    """Return the number of decimals that show so many digits of a value, as :func:`number` takes it."""
    if not math.isfinite(value) or value == 0:
        return digits
    return shown(digits - 1 - math.floor(math.log10(abs(value))))


def shown(decimals: int) -> int:
    """Return how many decimals are shown: none below 0, but where :func:`number` writes a power of ten."""
    return decimals if decimals < -MOST_DECIMALS else max(decimals, 0)


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


def _value(arm: ArmResult, digits: int, fewer: str) -> Cell:
    if arm.value is None:
        return Cell(no_value(arm))
    kept = f"of the {len(arm.by_seed)} with a number" if arm.lost else ""
    few = arm.value.samples < FEWEST_FOR_INTERVAL
    alone = "" if not few else ALONE if arm.seeds == 1 and not fewer else "no interval"
    return Cell(interval_text(arm.value, digits), ", ".join(filter(None, [fewer, kept, alone])))


def _rate(arm: ArmResult) -> Cell:
    if arm.learning_rate is None:
        return Cell("none", "each had a seed without a number") if arm.no_rate else Cell("")
    return Cell(f"{arm.learning_rate:g}")


def _steps(found: Reach | None) -> Cell:
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


def _speed_up(arm: ArmResult, baseline: str) -> Cell:
    if arm.name == baseline or arm.reach is None or not arm.reach.steps:
        return Cell("")
    ratio = arm.reach.speed_up
    if ratio is None:
        return Cell("–")
    text = f"{'≥ ' if arm.reach.bounds else ''}{times(ratio.mean)}×"
    bounds = f"lower bound in {arm.reach.bounds} of {ratio.samples}" if arm.reach.bounds else ""
    if ratio.samples == 1:
        return Cell(text, ", ".join(filter(None, [ALONE, bounds])))
    if ratio.samples < FEWEST_FOR_INTERVAL:
        return Cell(text, "; ".join(filter(None, ["2 seeds, no interval", bounds])))
    ends = f"{times(ratio.low)} to {times(ratio.high)}" if ratio.high < 1000 else f"from {times(ratio.low)}"
    return Cell(text, "; ".join(filter(None, [ends, bounds])))


def _html(cell: Cell, column: str, colors: Mapping[str, str]) -> str:
    note = f' <span class="note">{html.escape(cell.note)}</span>' if cell.note else ""
    kind = f' class="{cell.kind}"' if cell.kind else ""
    label = f' data-label="{html.escape(column)}"' if cell.text else ""
    if cell.arm:
        mark = f'<i class="mark" style="background:{colors[cell.arm]}"></i>' if cell.arm in colors else ""
        return f'<th scope="row">{mark}{html.escape(cell.text)}{note}</th>'
    return f"<td{kind}{label}>{html.escape(cell.text)}{note}</td>"
