"""A run that diverged is a result: counted, never dropped in silence, never in favour of its initialization."""

import json
import math

import pytest

from comparison.contrasts.place import look
from comparison.contrasts.targets import final_mean, steps_to
from comparison.intervals import t_interval
from comparison.runs.folder import read_manifest
from comparison.say.data import read_report_data
from comparison.say.headline import headline_table, headline_tables, learning_rate_table
from comparison.say.panels.learning_rates import learning_rates
from comparison.say.writing import record

GOOD = {0: 0.80, 1: 0.81, 2: 0.79, 3: 0.80}
BETTER = {0: 0.90, 1: 0.912, 2: 0.89, 3: 0.90}
HALF = {0: 0.90, 1: 0.912, 2: math.nan, 3: math.inf}


def found(folder):
    (each,) = read_report_data(folder).places
    return each, {arm.name: arm for arm in each.arms}


def test_seeds_that_diverged_are_counted_and_a_gain_of_the_others_is_not_claimed(comparison):
    each, arms = found(comparison({"default": GOOD, "steady": BETTER, "wild": HALF}, pieces=()))
    assert arms["wild"].diverged == (2, 3)
    assert arms["wild"].seeds == 4
    assert set(arms["wild"].by_seed) == {0, 1}
    assert each.to_baseline("steady").verdict == "better"
    assert each.to_baseline("wild").interval.mean == pytest.approx(10.1)
    assert each.to_baseline("wild").verdict == "undecided"
    row = headline_table(each).rows[2]
    assert (row[1].text, row[1].note) == ("4", "2 of 4 diverged")
    assert row[2].note == "no interval"
    assert row[3].note.startswith("2 pairs, not judged: ")
    assert row[3].kind == "open"


def test_a_baseline_that_diverged_is_not_favoured_either(comparison):
    baseline = {**BETTER, 3: math.nan}
    each, _ = found(comparison({"default": baseline, "worse": GOOD}, pieces=()))
    assert each.to_baseline("worse").interval.high < 0  # over the seeds in which the baseline has a number
    assert each.to_baseline("worse").verdict == "undecided"


def test_a_loss_that_is_no_number_is_a_divergence_though_accuracy_has_one(comparison):
    folder = comparison({"default": GOOD, "wild": BETTER}, pieces=())
    path = folder / "runs" / "wild" / "seed_1" / "result.json"
    result = json.loads(path.read_text())
    result["metrics"]["val/loss"] = None  # as JSON without NaN has it
    path.write_text(json.dumps(result))
    each, arms = found(folder)
    assert arms["wild"].diverged == (1,)
    assert len(arms["wild"].by_seed) == 4
    assert each.to_baseline("wild").verdict == "undecided"
    assert arms["wild"].reach.steps[1] is None  # its accuracy passed the target before
    assert arms["wild"].reach.speed_up is None


def test_a_curve_that_ends_in_no_number_reaches_nothing_and_gaps_are_passed_over():
    assert steps_to([(10, 0.2), (20, 0.8), (30, math.nan)], 0.5) is None
    assert steps_to([(10, 0.2), (20, math.nan), (30, 0.8)], 0.5) == pytest.approx(20)
    assert final_mean({0: [(10, 0.4)], 1: [(10, math.nan)], 2: [(10, 0.6)]}) == pytest.approx(0.5)
    assert final_mean({0: [(10, math.inf)]}) is None


def test_an_interval_of_what_is_no_number_is_none_and_excludes_nothing():
    for values in ([1.0, math.nan], [math.inf, -math.inf], [math.inf]):
        interval = t_interval(values)
        assert math.isnan(interval.mean)
        assert not interval.excludes_zero


def test_a_learning_rate_that_diverged_says_so(comparison):
    each, _ = found(comparison({"default": GOOD}, pieces=()))
    choice = {"default": {"chosen": 0.001, "validation": {"0.001": [0.5, 0.6], "30": [math.nan, 0.1]}}}
    row = learning_rate_table(choice, each.metric).iloc[0]
    assert row.to_dict() == pytest.approx(
        {
            **{"arm": "default", "test accuracy % at 0.001": 55.0, "test accuracy % at 30": math.nan},
            **{"chosen": "0.001", "at an end of those tried": "yes"},
        },
        nan_ok=True,
    )
    choice = {"default": {"chosen": 0.01, "validation": {"0.001": [0.5, 0.6], "0.01": [0.7, 0.6], "30": [0.1, 0.1]}}}
    row = learning_rate_table(choice, each.metric).iloc[0]
    assert row["at an end of those tried"] == ""


def test_an_arm_whose_learning_rates_all_failed_is_in_the_main_table(comparison):
    folder = comparison({"default": {}, "wild": {}}, seeds=[0, 1], learning_rates=[0.1, 0.3])
    choices = {"default": {"chosen": 0.1, "validation": {"0.1": [0.8, 0.81], "0.3": [0.7, 0.7]}}}
    choices["wild"] = {"chosen": None, "validation": {"0.1": [math.nan, 0.5], "0.3": [None, None]}}
    for arm, choice in choices.items():
        for rate, finals in choice["validation"].items():
            for seed, final in enumerate(finals):
                reason = "RuntimeError: out of patience" if final is None else None
                place = folder / "runs" / arm / f"learning_rate_{rate}"
                comparison.add_run(place, arm, seed, final, (), True, reason, rate=float(rate))
    (folder / "learning_rates.json").write_text(json.dumps({"": choices}))
    row = "| wild | 2 (no learning rate: at each a run diverged or failed) | – | nothing paired |"
    (each,) = places = look(folder, read_manifest(folder))
    assert row in headline_tables(places)
    assert [arm.name for arm in each.arms] == ["default", "wild"]
    assert not each.contrasts  # and so nothing is said to be better
    numbers = record(read_report_data(folder))["places"][0]["arms"][1]
    assert numbers["value"] is None


def test_learning_rates_are_shown_in_the_metric_that_chose_them_whatever_the_report_is_of(comparison):
    folder = comparison({"default": GOOD}, pieces=())
    choice = {"default": {"chosen": 0.1, "validation": {"0.1": [0.7, 0.6], "0.3": [0.5, 0.6]}}}
    (folder / "learning_rates.json").write_text(json.dumps({"": choice}))
    table, how = learning_rates(read_report_data(folder, metric="val/loss"))
    assert "Values of val accuracy, higher is better" in how.markdown
    assert [*table.columns[1:3]] == ["val accuracy % at 0.1", "val accuracy % at 0.3"]
