"""Learning curves: few arms in one plot, many beside the baseline in small ones."""

from __future__ import annotations

import pytest
from matplotlib.image import imread

from comparison.report.lines import MOST_TOGETHER, curve_figure
from comparison.report.theme import figure_settings, new_figure, save, settle, styles
from comparison.results.metric import Metric

METRIC = Metric("val/accuracy", "max")


def figure(count, baseline="default"):
    arms = ["default", *(f"other_{number}" for number in range(1, count))]
    curves = {
        arm: {seed: [(0.0, 0.1), (100.0, 0.01 * number + 0.001 * seed)] for seed in range(3)}
        for number, arm in enumerate(arms, start=20)
    }
    return curve_figure(curves, styles(arms, "default"), METRIC, "step", baseline), arms


def test_up_to_eight_arms_share_a_plot_and_are_named_at_the_ends_of_their_lines():
    drawn, arms = figure(MOST_TOGETHER)
    (axis,) = drawn.axes
    assert [text.get_text() for text in axis.texts] == arms
    assert len(axis.collections) == MOST_TOGETHER  # a band each


def test_more_arms_have_a_plot_each_beside_the_baseline():
    drawn, arms = figure(MOST_TOGETHER + 2)
    shown = [axis for axis in drawn.axes if axis.get_visible()]
    assert [axis.get_title(loc="left") for axis in shown] == arms[1:]
    for number, axis in enumerate(shown, start=21):
        ends = [line.get_ydata()[-1] for line in axis.lines]
        assert ends == pytest.approx([20.1, number + 0.1])
        assert len(axis.collections) == 2
    assert {axis.get_ylim() for axis in shown} == {shown[0].get_ylim()}
    low, high = shown[0].get_ylim()
    assert low < 10
    assert high > 29.1
    assert "default in grey" in drawn.get_suptitle()


def test_without_a_curve_of_the_baseline_they_share_a_plot():
    drawn, arms = figure(MOST_TOGETHER + 2, baseline="not trained yet")
    (axis,) = drawn.axes
    assert len(axis.texts) == len(arms)


def test_only_the_lowest_plot_of_a_column_names_its_places():
    drawn, _ = figure(MOST_TOGETHER + 2)  # nine plots in rows of four, the last row with one
    below = [axis.xaxis.get_tick_params()["labelbottom"] for axis in drawn.axes]
    assert below[:9] == [False] * 5 + [True] * 4


@pytest.mark.parametrize("name", ["deform_from_scratch", "mimetic_state_space_no_correlate", "illiterate_fillings"])
def test_long_names_stay_on_the_paper(name, tmp_path):
    with figure_settings():
        drawn = new_figure(4.5, 2.0)
        axis = drawn.subplots()
        axis.set_yticks([0.5], [name], fontweight="bold")
    settle(drawn)
    _, paper = save(drawn, tmp_path, "figure")
    ink = imread(paper)[..., :3].min(axis=(0, 2))  # the darkest of each column of pixels
    assert paper.name == "figure.png"
    assert ink[:4].min() > 0.99
