"""The sentences on top of a report, and what ties attention and weights to the result."""

import math
import re

import numpy as np
import pytest

from comparison.report.data import read_report_data
from comparison.report.findings import lead
from comparison.report.summary import summary


def said(folder, **changes):
    return [each.replace("\N{NO-BREAK SPACE}", " ") for each in summary(read_report_data(folder, **changes))]


def test_sentences_say_which_by_how_much_how_sure_what_structure_adds_and_why(comparison, known_effects):
    which, sure, structure, *_ = said(comparison(known_effects, controls={"mimetic": {"sincos": "same positions"}}))
    gains = [100 * (known_effects["sincos"][seed] - known_effects["default"][seed]) for seed in range(3)]
    half = 4.302653 * np.std(gains, ddof=1) / math.sqrt(3)
    assert re.fullmatch(
        r"What the structure of mimetic adds, in points of test accuracy: \+\d\.\d ± \d\.\d over the same positions "
        r"\(sincos; not told apart, 3 pairs\)\. The size of its weights is not controlled for: "
        r"mimetic_scrambled would do that\.",
        structure,
    )
    assert which.startswith(
        f"sincos is better than default: +{np.mean(gains):.1f} ± {half:.1f} points of test accuracy"
    )
    assert sure == "That is based on 3 pairs of runs (adjusted p < 0.001 among 3 differences)."


def test_where_a_control_is_best_the_sentences_are_about_what_it_controls(comparison):
    values = {"default": [0.8, 0.81, 0.82], "mimetic": [0.81, 0.80, 0.84], "mimetic_scrambled": [0.9, 0.92, 0.91]}
    planned = {"controls": {"mimetic": {"mimetic_scrambled": "scrambled"}}, "seeds": [0, 1, 2]}
    folder = comparison({arm: {} for arm in values}, {"model.net": ["cct", "vit"]}, **planned)
    for arm, of_arm in values.items():
        for seed, final in enumerate(of_arm):
            comparison.add_run(folder / "runs" / arm, arm, seed, final, (), True, point={"model.net": "vit"})
    which, _, structure, ahead = said(folder)
    assert re.fullmatch(
        r"What the structure of mimetic adds, at net vit, in points of test accuracy: −9\.3 ± \d\.\d over itself "
        r"scrambled \(mimetic_scrambled; worse, 3 pairs\)\.",
        structure,
    )
    assert "mimetic is not shown to improve on default" in which  # its control is no competitor
    assert ahead.startswith("The control mimetic_scrambled is ahead: +10.0 ± 2.5 points over default, not judged. To")


def test_where_nothing_is_shown_the_first_sentence_says_so(comparison):
    values = {"default": {0: 0.8, 1: 0.81, 2: 0.82}, "sincos": {0: 0.81, 1: 0.80, 2: 0.84}}
    which, sure = said(comparison(values, pieces=()))
    assert which == "sincos is not shown to improve on default in test accuracy: +0.7 ± 3.8 points."
    assert sure == "This is based on 3 pairs of runs (adjusted p = 0.53)."


def test_successes_answer_where_they_are_counted(comparison):
    values = {"default": dict.fromkeys(range(5), 0.1), "sincos": dict.fromkeys(range(5), 0.99)}
    (which,) = said(comparison(values, pieces=()), success=0.95)
    counts = "Runs with test accuracy ≥ 95 %: default 0 of 5 and sincos 5 of 5."
    more = "More often than default: sincos (adjusted p = 0.008)."
    assert which == f"{counts} {more} Mean test accuracy: default 10.0 and sincos 99.0 %."


NEAR = [0.4, 0.5, 0.6, 0.7, 0.5, 0.52, 0.55, 0.49]
FAR = [0.8, 0.81, 0.85, 0.9, 0.8, 0.79, 0.77, 0.81]


@pytest.mark.parametrize(
    ("metric", "arms", "options", "expected"),
    [
        (
            "accuracy",
            {"default": NEAR, "mine": FAR, "mine_scrambled": [0.6, 0.65, 0.63, 0.61, 0.59]},
            {"controls": {"mine": "mine_scrambled"}},
            [r"3 arms of \S+, 5 to 8 seeds:", r"over its control \(mine_scrambled; better, 5 pairs\)"],
        ),
        (
            "accuracy",
            {"default": [0.3, math.nan, 0.3, 0.98, 0.3, 0.3], "mine": [0.99, 0.98, 0.3, 0.99, 0.99, 0.97]},
            {"success": 0.95},
            [r"6\. Diverged: default in 1 of 6 seeds\.", r"default 43\.6 \(of the 5 with a number\) and mine 87\.0 %"],
        ),
        (
            "Test Accuracy (%)",
            {
                "default": [70, 71, 70.5, 70.2, 70.9],
                "mine": [75, 70, 76, 71, 75.2],
                "other": [71.3, 72, 71.6, 71.1, 72.1],
            },
            {"controls": {"mine": "other"}},
            [r"\+2\.9 ± 3\.6 points\.", r"control other has an interval that excludes zero: \+1\.1 ± 0\.2 points over"],
        ),
        (
            "accuracy",
            {"default": NEAR, "mine": [*FAR[:-1], math.nan], "other": [each + 0.1 for each in NEAR]},
            {"controls": {"mine": "other"}},
            [r"over its control \(other; not judged, 7 pairs\)"],
        ),
    ],
    ids=["unequal", "diverged", "behind", "unjudged"],
)
def test_the_first_sentences_of_a_table_hide_nothing(tmp_path, metric, arms, options, expected):
    rows = [f"{arm},{seed},{value}" for arm, of_arm in arms.items() for seed, value in enumerate(of_arm)]
    (tmp_path / "t.csv").write_text("\n".join([f"arm,seed,{metric}", *rows]))
    text = " ".join([lead(read_report_data(tmp_path / "t.csv")), *said(tmp_path / "t.csv", **options)])
    assert [each for each in expected if not re.search(each, text)] == [], text
