import math

import pytest
from compared import found

from comparison.contrasts.place import look
from comparison.contrasts.targets import reach, steps_to
from comparison.runs.folder import read_manifest
from comparison.runs.metric import Metric
from comparison.say.data import read_report_data
from comparison.say.headline import headline_table, headline_tables, speed_table
from comparison.tables import Cell, Table, number


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_a_table_in_latex_has_its_signs_escaped():
    text = Table(["arm", "accuracy %"], [[Cell("my_arm"), Cell("−1.5 ± 0.2", "− it, p < 0.05")]]).latex()
    assert text.splitlines() == [
        *(r"\begin{tabular}{ll}", r"\toprule", r"arm & accuracy \% \\", r"\midrule"),
        *(r"my\_arm & $-$1.5 ± 0.2 ($-$ it, p $<$ 0.05) \\", r"\bottomrule", r"\end{tabular}"),
    ]


def test_headline_pairs_every_arm_with_baseline_and_control():
    values = {"default": {0: 0.80, 1: 0.82, 2: 0.84}, "sincos": {0: 0.85, 1: 0.88, 2: 0.88}}
    values["mimetic"] = {0: 0.86, 1: 0.90, 2: 0.87}
    text = headline_tables(found(values, controls={"mimetic": {"sincos": "same positions"}}))
    header, _, default, sincos, mimetic, _, heading, _, control = cells(text)
    assert header == [
        "arm",
        "seeds",
        "test accuracy %, higher is better",
        "− default (paired)",
        "gain; beyond its controls",
    ]
    # t(0.975, 2) · 2 / √3 = 4.97
    assert default == ["default", "3", "82.0 ± 5.0", "baseline", ""]
    # Differences 5, 6, 4: 4.303 · 1 / √3; t = 8.66 has p = 0.013, three times that as the smallest of three.
    assert sincos[3] == "+5.0 ± 2.5 (3 pairs, better, adjusted p = 0.039)"
    # 6, 8, 3 and 1, 2, −1: twice 0.060, and 0.53
    assert mimetic[3:] == ["+5.7 ± 6.3 (3 pairs, undecided, adjusted p = 0.12)", "not shown; –"]
    assert heading == ["arm", "control", "arm against control"]
    assert control == ["mimetic", "sincos (same positions)", "+0.7 ± 3.8 (3 pairs, undecided, adjusted p = 0.53)"]


@pytest.mark.parametrize(
    ("values", "mean", "difference"),
    [
        (({0: 0.8}, {0: 0.9}), "90.0 (no interval)", "+10.0 (1 pair, no interval: run at least 5 seeds)"),
        # A seed that only one arm has is not paired.
        (({0: 0.8, 1: 0.8}, {0: 0.85, 1: 0.87, 2: 0.1}), "60.67 (", "+6.00 (2 pairs, no interval"),
        (
            ({0: 0.2, 1: 0.3}, {0: 0.61, 1: 0.62}),
            "61.5 (no interval)",
            "+36.5 (2 pairs, no interval",
        ),
        (({0: 0.8, 1: 0.81, 2: 0.8}, {0: 0.85, 1: 0.86, 2: 0.85}), "85.3", "the same in all seeds: no t-test applies"),
    ],
)
def test_few_or_equal_seeds_are_never_a_bare_mean_nor_certain(values, mean, difference):
    (judged,) = found(dict(zip(("default", "sincos"), values, strict=True)))
    shown = cells(headline_table(judged).markdown())[3]
    assert shown[2].startswith(mean)
    assert difference in shown[3]
    assert "p = " not in shown[3]
    assert headline_table(judged).rows[1][3].kind == "open"


@pytest.mark.parametrize(
    ("values", "rows"),
    [  # means of about 11 and 7.8, of two and of three seeds, and of three that hardly differ
        (([10.9, 11.08], [6.0, 9.6]), [("10.99", "baseline"), ("7.80", "−3.19")]),
        (([10.9, 11.08, 11.5], [4.2, 9.6, 9.5]), [("11.2 ± 0.8", "baseline"), ("7.8 ± 7.7", "−3.4 ± 7.1")]),
        (([0.9, 1.1, 19.5], [4.2, 9.6, 19.5]), [("7 ± 27", "baseline"), ("11 ± 19", "+4 ± 11")]),
    ],
)
def test_decimals_follow_the_intervals_that_are_shown_and_tell_the_arms_apart(values, rows):
    (judged,) = found(dict(zip(("default", "other"), values, strict=True)), "certified")
    assert [(row[2].text, row[3].text) for row in headline_table(judged).rows] == rows


def test_steps_are_linear_between_evaluations():
    curve = [(10, 0.2), (20, 0.6), (30, 0.5)]
    assert steps_to(curve, 0.4) == pytest.approx(15)
    assert steps_to(curve, 0.1) == 10  # there at the first evaluation: no sooner is known
    assert steps_to(curve, 0.7) is None
    assert steps_to([(10, 0.5), (20, 0.7799999713897705)], 0.78) == 20  # float32 of the same 195 of 250
    assert steps_to([(10, 0.5), (20, 0.7799)], 0.78) is None
    assert steps_to([(10, 2.0), (30, 1.0)], 1.5, "min") == pytest.approx(20)


def test_speed_up_is_the_paired_ratio_of_steps_to_a_value_that_all_runs_of_both_reach():
    baseline = {0: [(10, 0.0), (110, 1.0)], 1: [(10, 0.0), (110, 0.4)]}
    arm = {0: [(10, 0.0), (35, 1.0), (110, 1.0)], 1: [(10, 0.0), (60, 1.0)]}
    found = reach(arm, baseline, 0.5)
    assert found.steps == {0: pytest.approx(22.5), 1: pytest.approx(35)}
    # All end at 0.4 or above: 50 and 20 steps to it in seed 0, 110 and 30 in seed 1.
    assert found.shared == 0.4
    assert found.speed_up.mean == pytest.approx(math.sqrt(50 / 20 * 110 / 30))
    assert (found.p_value, found.is_faster) == (None, None)  # two seeds
    turned = reach(baseline, arm, 0.5)  # what is faster one way is slower the other way
    assert turned.speed_up.mean == pytest.approx(1 / found.speed_up.mean)
    assert reach(baseline, {0: [(10, 0.0), (20, math.nan)]}, 0.5).speed_up is None
    assert reach({0: [(10, 0.5), (20, 0.4)]}, {0: [(10, 0.6), (20, 0.4)]}, 0.5).speed_up is None  # there at once


def test_the_target_is_the_baselines_final_mean_on_validation(comparison):
    values = {"default": {0: 0.6, 1: 0.8}, "sincos": {0: 0.9, 1: 0.9}}
    (found,) = read_report_data(comparison(values, pieces=())).places
    assert found.target == pytest.approx(70)
    steps = {arm.name: arm.reach.steps for arm in found.arms}
    # Curves rise linearly from the first evaluation at 10 steps to the final value at 40.
    assert steps["default"] == {0: None, 1: pytest.approx(35)}
    assert steps["sincos"][0] == pytest.approx(40 * 0.7 / 0.9)
    rows = speed_table(found).rows
    assert rows[0][1].note == "35 to 35, in 1 of 2 runs"
    assert (rows[1][2].text, rows[1][2].note) == ("1.3×", "no interval: run at least 5 seeds, to 60.0 %")  # √(12 / 8)


def test_an_arm_is_faster_only_among_all_speed_ups(comparison):
    noise = (0.0, 0.004, -0.004, 0.002, -0.003)
    values = {arm: {seed: each + noise[seed] for seed in range(5)} for arm, each in (("default", 0.60), ("a", 0.61))}
    values["fast"] = {seed: 0.9 + noise[(seed + 2) % 5] for seed in range(5)}
    (found,) = read_report_data(comparison(values, pieces=())).places
    a, fast = (arm.reach for arm in found.arms[1:])
    assert min(a.adjusted, fast.adjusted) == pytest.approx(2 * min(a.p_value, fast.p_value), abs=0)
    cell = speed_table(found).rows[2][-1]
    assert (fast.is_faster, cell.kind) == (True, "gain")
    assert "faster, adjusted p" in cell.note
    assert max(a.adjusted, fast.adjusted) == pytest.approx(
        max(2 * min(a.p_value, fast.p_value), a.p_value, fast.p_value)
    )


def test_the_mean_of_an_accuracy_has_students_interval_cut_at_the_ends_and_none_where_seeds_agree():
    values = {"default": [1.0, 1.0, 1.0], "near": [0.99, 0.97, 1.0], "split": [0.99, 0.98, 0.97]}
    (judged,) = found(values)
    default, near, _ = (row[2] for row in headline_table(judged).rows)
    assert (default.text, default.note) == ("100.0", "no interval")
    low = 98.667 - 4.302653 * 1.5275 / math.sqrt(3)
    assert (judged.arms[1].value.low, judged.arms[1].value.high) == (pytest.approx(low, abs=1e-3), 100)
    assert near.text == f"98.7 ({low:.1f} to 100.0)"


def test_a_mistyped_metric_or_an_empty_folder_says_that_nothing_is_complete(comparison):
    folder = comparison({"default": {0: 0.6}}, pieces=(), metric="test/other")
    assert "No complete run" in headline_tables(look(folder, read_manifest(folder)))


def test_cells_are_escaped():
    table = Table(["a|b"], [[Cell("c")]])
    assert table.markdown().splitlines()[0] == "| a\\|b |"
    pattern = Table(["setting"], [[Cell("^ = [^=].*[^=] = \n$")]])  # no footnotes, and one line
    assert pattern.markdown().splitlines()[2:] == ["| ^ = \\[^=].\\*\\[^=] = \\n$ |"]


def test_numbers_have_a_real_minus_and_accuracy_is_in_percent():
    assert number(-1.25, 1, signed=True) == "−1.2"
    assert {number(value, 2, signed) for value in (-0.004, -0.0) for signed in (True, False)} == {"0.00"}
    assert (number(-0.014, 2), number(-2e-15, 16)) == ("−0.01", "−2.0e−15")
    assert Metric("test/accuracy").factor == 100
