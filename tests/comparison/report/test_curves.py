"""Learning curves, and whether results can be compared at all."""

import compared
import pytest
from matplotlib.image import imread

from comparison.report.data import read_report_data
from comparison.report.findings import findings
from comparison.report.panels.curves import MOST_TOGETHER, curve_figure, curves, steps
from comparison.report.panels.result import difference_figure, power
from comparison.report.summary import summary
from comparison.report.theme import Drawing, figure_settings, new_figure, styles
from comparison.results.headline import headline_table
from comparison.results.metric import Metric

METRIC = Metric("val/accuracy", "max")
FLOOR = {"default": {0: 0.0, 1: 0.0, 2: 0.0}, "sincos": {0: 0.0, 1: 0.0, 2: 0.0}}
LEARNED = {"default": {0: 0.80, 1: 0.82, 2: 0.84}, "sincos": {0: 0.85, 1: 0.88, 2: 0.88}}
EQUAL = "All 6 final results are equal"


def test_every_seed_of_a_difference_is_inside_of_the_picture():
    """A far seed makes the mean's interval narrower than the dots where many others agree."""
    values = {"default": [80.0] * 30, "a": [80.1] * 14 + [80.2] * 15 + [70.0]}
    (judged,) = compared.found(values, percent=True)
    drawn = difference_figure(judged, styles(list(values), "default"), "baseline")
    low, high = drawn.axes[0].get_xlim()
    assert low < -10.0
    assert high > 0.2


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


def test_curves_of_a_metric_that_no_validation_split_has_are_in_the_markdown_too(tmp_path):
    rows = [f"{arm},{seed},{step},{2 - step / 20 + seed}" for arm in "ab" for seed in range(3) for step in (10, 20)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,step,test/loss", *rows]))
    link = "![Learning curves: test loss over optimizer steps](figures/curves_test_loss_by_step.png)"
    assert link in compared.report_text(tmp_path / "t.csv", "curves")


def test_of_several_loaders_the_curves_of_the_judged_metric_come_first(comparison, known_effects):
    folder = comparison(known_effects, pieces=(), seconds=False)
    for file in folder.rglob("metrics.csv"):
        named = file.read_text().replace("val/accuracy", "val/accuracy/dataloader_idx_0")
        file.write_text(named.replace("val/loss", "val/a_loss/dataloader_idx_0"))
    html, *_ = curves(read_report_data(folder))
    assert html.drawings[0].name == "curves_val_accuracy_dataloader_idx_0_by_step"


def test_the_band_of_an_accuracy_ends_at_0_and_100_percent():
    curves = {"default": {seed: [(0.0, 0.02 * seed**2), (9.0, 1 - 0.02 * seed**2)] for seed in range(3)}}
    (axis,) = curve_figure(curves, styles(["default"], "default"), METRIC, "step", "default").axes
    (band,) = axis.collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (0, 100)


@pytest.mark.parametrize(("spread", "whole"), [(0.02, True), (0.5, False)])
def test_a_band_is_whole_unless_the_plot_would_be_more_than_three_times_as_high_as_its_means(spread, whole):
    means = {"default": (0.4, 0.45), "a": (0.45, 0.5)}
    curves = {
        arm: {seed: [(step, value + spread * (seed - 1)) for step, value in enumerate(ends)] for seed in range(3)}
        for arm, ends in means.items()
    }
    (axis,) = curve_figure(curves, styles(list(curves), "default"), METRIC, "step", "default").axes
    low, high = axis.get_ylim()
    ends = [end for band in axis.collections for end in band.get_paths()[0].vertices[:, 1]]
    assert (low < min(ends) and max(ends) < high) == whole
    assert high - low < 3.1 * 10


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


def test_long_names_stay_on_the_paper(tmp_path):
    with figure_settings():
        drawn = new_figure(4.5, 2.0)
        axis = drawn.subplots()
        axis.set_yticks([0.5], ["mimetic_state_space_no_correlate"], fontweight="bold")
    _, paper = Drawing(drawn, "figure", "Names").write(tmp_path)
    ink = imread(paper)[..., :3].min(axis=(0, 2))  # the darkest of each column of pixels
    assert paper.name == "figure.png"
    assert ink[:4].min() > 0.99


@pytest.fixture
def data(comparison):
    return lambda values, **changes: read_report_data(comparison(values, pieces=(), **changes))


def text_of(pieces):
    return "\n".join(getattr(piece, "markdown", piece) for piece in pieces)


def test_where_all_results_are_equal_one_sentence_says_so_and_no_target_is_to_be_reached(data):
    at_floor = data(FLOOR)
    (found,) = at_floor.places
    (sentence,) = summary(at_floor)
    assert findings(found) == [sentence]
    assert sentence.startswith(f"{EQUAL}, 0.00 %: no arm differs from another")
    assert headline_table(found).columns == ["arm", "seeds", "test accuracy %, higher is better", "− default (paired)"]
    assert power(at_floor) == []
    assert "Every run is at the target, 0.00 % (val)" in text_of(steps(at_floor))
    assert "seed 0" not in text_of(steps(at_floor))
    (one_differs,) = compared.found({"default": [0.0] * 3, "sincos": [0.0, 0.0, 0.01]})
    assert not any(EQUAL in sentence for sentence in findings(one_differs))


def test_equal_results_that_had_to_be_learned_keep_their_steps(data):
    learned = data({arm: dict.fromkeys(range(3), 0.9) for arm in LEARNED})
    (found,) = learned.places
    assert findings(found)[0].startswith(f"{EQUAL}, 90.0 %")
    assert headline_table(found).columns[-2:] == ["steps to 90.0 % (val)", "speed-up"]
    assert "seed 0" in text_of(steps(learned))


def test_steps_to_the_first_evaluation_are_at_most_so_many(data):
    """Curves rise linearly from a quarter of the final value, at 10 steps."""
    soon = data({"default": dict.fromkeys(range(3), 0.2), "sincos": dict.fromkeys(range(3), 0.9)})
    assert "| sincos | ≤ 10 | ≤ 10 | ≤ 10 |" in text_of(steps(soon)).replace(" |\n", " |")


@pytest.mark.parametrize(
    ("values", "notes", "sentence"),
    [
        ({**LEARNED, "sincos": {0: 0.85, 1: 0.88}}, ["", "2 of 3 seeds, no interval"], "sincos 2 of 3 seeds"),
        (
            {"default": {0: 0.80, 1: 0.82}, "sincos": {1: 0.85, 2: 0.88}},  # as many, but others
            ["2 of 3 seeds, no interval"] * 2,
            "default 2 of 3 seeds and sincos 2 of 3 seeds",
        ),
        (LEARNED, ["", ""], None),
    ],
)
def test_means_over_different_seeds_are_marked_and_a_sentence_warns_of_them(data, values, notes, sentence):
    (found,) = data(values).places
    assert [row[2].note for row in headline_table(found).rows] == notes
    said = [each for each in findings(found) if each.startswith("Means")]
    if len(notes) > notes.count(""):
        start = f"Means are over different seeds ({sentence}), and differences over the seeds that both arms have"
        said = [each for each in said if not each.startswith(start)]
    assert said == []


def of_values(tmp_path, value):
    rows = [f"{arm},{seed},{value(place, seed)!r}" for place, arm in enumerate(("default", "a")) for seed in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,test/loss", *rows]))
    (found,) = read_report_data(tmp_path / "t.csv").places
    text = "\n".join([*findings(found), headline_table(found).markdown()])
    return text.replace("\N{NO-BREAK SPACE}", " ")


SPREAD = (0.0, 0.3, 0.1, 0.2)  # of the seeds


DIFFERENCE = (0.19, 0.20, 0.22, 0.23)  # its mean is 0.21, its deviation √(0.001 / 3), the half width 3.1824 / 2 of that


@pytest.mark.parametrize("base", [1e9, -7e8])
def test_small_differences_of_large_values_are_differences(tmp_path, base):
    text = of_values(tmp_path, lambda arm, seed: base + SPREAD[seed] + arm * DIFFERENCE[seed])
    assert "are equal" not in text
    assert "Worse than default: a +0.210 ± 0.029" in text


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (1e-300, "+2.10e−301 ± 2.9e−302"),
        (1e300, "+2.10e+299 ± 2.9e+298"),
        (1e9, "+2.10e+08 ± 2.9e+07"),
    ],
)
def test_values_of_any_size_are_compared(tmp_path, size, shown):
    text = of_values(tmp_path, lambda arm, seed: size * (1 + SPREAD[seed] + arm * DIFFERENCE[seed]))
    assert f"Worse than default: a {shown}" in text
    assert max(map(len, text.split())) < 80  # no number of 300 digits


def test_differences_that_rounding_makes_are_none(tmp_path):
    text = of_values(tmp_path, lambda arm, seed: 0.1 * (seed + 1) + arm * 0.3)  # 0.4 − 0.1 is not 0.5 − 0.2
    assert "the same difference in all seeds: no t-test applies" in text
