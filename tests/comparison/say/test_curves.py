"""Learning curves, and how soon arms reach the baseline's result."""

import math

import compared
import numpy as np
import pandas as pd
import pytest

from comparison.runs.metric import Metric
from comparison.say.data import read_report_data
from comparison.say.headline import headline_table, speed_table
from comparison.say.panels.curves import by_step, curve_figure, curves, mean_curve
from comparison.say.theme import Drawing, styles

METRIC, LOSS = Metric("val/accuracy", "max"), Metric("val/loss", "min")


def frame(arms):
    """A row per logged value, of arm → seed → [(step, value)]."""
    rows = [
        (arm, seed, step, value)
        for arm, seeds in arms.items()
        for seed, curve in seeds.items()
        for step, value in curve
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "step", "value"])


def axis_of(arms, metric=METRIC):
    (axis,) = curve_figure(frame(arms), styles([*arms], next(iter(arms))), metric, "optimizer steps").axes
    return axis


def test_a_band_is_the_t_interval_at_every_evaluation_that_all_seeds_have():
    seeds = {0: [(10, 1.0), (20, 4.0)], 1: [(10, 2.0), (20, 4.0)], 2: [(10, 3.0), (20, 7.0), (30, 9.0)]}
    mean, half = mean_curve(by_step(frame({"a": seeds})))
    assert mean.to_dict() == {10: 2, 20: 5}
    assert half[10] == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)


def test_the_band_of_an_accuracy_ends_at_0_and_100_percent():
    axis = axis_of({"default": {seed: [(0, 0.02 * seed**2), (9, 1 - 0.02 * seed**2)] for seed in range(3)}})
    (band,) = axis.collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (0, 100)


@pytest.mark.parametrize("end", [math.nan, 1e30])
def test_curves_of_runs_that_diverge_leave_the_others_readable(end):
    steady = {seed: [(10, 2.0), (20, 1.0 + 0.1 * seed), (30, 0.9)] for seed in range(3)}
    wild = {0: [(10, 3.0), (20, 2.5), (30, 2.4)], 1: steady[1], 2: [(10, 2.0), (20, end), (30, math.nan)]}
    axis = axis_of({"a": steady, "b": wild}, LOSS)
    low, high = axis.get_ylim()
    assert low < 0.9
    assert 3 < high < 5  # the seeds that did not diverge are in sight too
    lines = {line.get_label(): line for line in axis.lines}
    assert "b (1 of 3 diverged)" in lines
    assert not np.isfinite(lines["b (1 of 3 diverged)"].get_ydata()[-1])  # no mean of the lucky ones
    axis.figure.draw_without_rendering()


def test_curves_of_a_metric_that_no_validation_split_has_are_in_the_markdown_too(tmp_path):
    rows = [f"{arm},{seed},{step},{2 - step / 20 + seed}" for arm in "ab" for seed in range(3) for step in (10, 20)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,step,test/loss", *rows]))
    link = "![Learning curves: test loss over optimizer steps](figures/curves_test_loss_by_step.png)"
    assert link in compared.report_text(tmp_path / "t.csv", "curves")


def test_what_matplotlib_takes_for_a_formula_or_a_pattern_is_shown_as_it_is(tmp_path):
    arms = ("default", r"$\foo$", r"acc % \u", r"a\$b$")
    rows = [[arm, seed, step, seed + step] for arm in arms for seed in range(2) for step in (1, 2)]
    pd.DataFrame(rows, columns=["arm", "seed", "step", r"val/$\bar$ % \u"]).to_csv(tmp_path / "t.csv", index=False)
    pieces = curves(read_report_data(tmp_path / "t.csv", mode="max"))
    (drawing,) = (piece for piece in pieces if isinstance(piece, Drawing))
    _, svg = drawing.write(tmp_path)
    assert all(f">{arm}</text>" in svg.read_text() for arm in arms)


def test_a_target_that_all_runs_are_at_from_the_beginning_is_no_result(comparison):
    at_floor = read_report_data(comparison({"default": {0: 0.0, 1: 0.0}, "sincos": {0: 0.0, 1: 0.0}}, pieces=()))
    (found,) = at_floor.places
    assert speed_table(found).rows == []
    assert not any("steps" in column for column in headline_table(found).columns)


def test_steps_to_the_first_evaluation_are_at_most_so_many(comparison):
    """Curves rise linearly from a quarter of the final value, at 10 steps."""
    values = {"default": dict.fromkeys(range(3), 0.2), "sincos": dict.fromkeys(range(3), 0.9)}
    (found,) = read_report_data(comparison(values, pieces=())).places
    _, (_, steps, _) = speed_table(found).rows
    assert (steps.text, steps.note) == ("≤ 10", "10 to 10, in 3 of 3 runs")


def cell_of(tmp_path, value):
    """The difference of an arm to the default in a table of losses."""
    rows = [f"{arm},{seed},{value(place, seed)!r}" for place, arm in enumerate(("default", "a")) for seed in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,test/loss", *rows]))
    (found,) = read_report_data(tmp_path / "t.csv").places
    return headline_table(found).rows[1][3]


SPREAD = (0.0, 0.3, 0.1, 0.2)  # of the seeds
DIFFERENCE = (0.19, 0.20, 0.22, 0.23)  # its mean is 0.21, its deviation √(0.001 / 3), the half width 3.1824 / 2 of that


@pytest.mark.parametrize(
    ("base", "size", "shown"),
    [
        *((1e9, 1, "+0.210 ± 0.029"), (-7e8, 1, "+0.210 ± 0.029"), (1e9, 1e9, "+2.10e+08 ± 2.9e+07")),
        *((1e-300, 1e-300, "+2.10e−301 ± 2.9e−302"), (1e300, 1e300, "+2.10e+299 ± 2.9e+298")),
    ],
)
def test_values_of_any_size_and_small_differences_of_large_ones_are_compared(tmp_path, base, size, shown):
    cell = cell_of(tmp_path, lambda arm, seed: base + size * (SPREAD[seed] + arm * DIFFERENCE[seed]))
    assert (cell.text, cell.kind) == (shown, "loss")
