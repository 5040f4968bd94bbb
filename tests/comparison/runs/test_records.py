import json
import shutil

import pandas as pd
import pytest

from comparison.plan.comparison import point_name
from comparison.runs.elsewhere import Wanted, read_elsewhere
from comparison.runs.folder import choice_name, find_runs, read_manifest
from comparison.runs.reading import read_runs
from comparison.runs.records import load_curves, load_results
from structured_init import StructuredInitError

VALUES = {"default": {0: 0.8, 1: 0.82}, "sincos": {0: 0.9, 1: 0.91}}
POINTS = {"data.init_args.fraction": ["0.1", "0.5"]}


def test_results_have_a_row_per_complete_run_in_the_order_of_the_arms(comparison):
    table = load_results(comparison({"zebra": {0: 0.8}, "ant": {0: 0.9, 1: 0.7}}, pieces=()))
    assert list(table["arm"]) == ["zebra", "ant", "ant"]
    assert list(table["test/accuracy"]) == [0.8, 0.9, 0.7]
    assert list(table["val/loss"]) == pytest.approx([0.2, 0.1, 0.3])
    assert table["chosen"].all()
    assert table["learning_rate"].isna().all()
    assert list(table["steps"]) == [40, 40, 40]


def test_a_run_without_a_result_counts_for_nothing_and_is_accounted_for(comparison):
    folder = comparison(VALUES, pieces=(), leave_out=[("sincos", 1)], fail={("default", 1): "out of memory"})
    assert len(load_results(folder)) == 2
    runs = find_runs(folder)
    assert {(run.arm, run.seed): run.failure for run in runs if run.result is None} == {("default", 1): "out of memory"}
    assert read_manifest(folder).missing_runs(runs) == [("sincos", 1, (), None)]


def test_curves_count_steps_taken(comparison):
    curves = load_curves(comparison(VALUES, pieces=()))
    run = curves[(curves["arm"] == "default") & (curves["seed"] == 0) & (curves["metric"] == "val/accuracy")]
    assert list(run["step"]) == [10, 20, 30, 40]
    assert list(run["seconds"]) == [2, 4, 6, 8]
    assert list(run["value"]) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert set(curves["metric"]) == {"val/accuracy", "val/loss"}


def test_what_a_resumed_run_logged_again_replaces_what_it_logged_before(comparison):
    folder = comparison({"default": {0: 0.8}}, pieces=())
    path = folder / "runs" / "default" / "seed_0" / "metrics.csv"
    # Killed after step 19 was logged, resumed from step 10, and logged at other steps since then.
    lines = ["epoch,step,val/accuracy", "0,9,0.1", "1,19,0.2", "1,16,0.25", "2,29,0.3", "3,"]
    path.write_text("\n".join(lines) + "\n")
    curves = load_curves(folder)
    assert list(zip(curves["step"], curves["value"], strict=True)) == [(10, 0.1), (17, 0.25), (30, 0.3)]


def test_every_place_of_a_grid_has_its_rows(comparison):
    folder = comparison({"default": {}}, grid=POINTS, seeds=[0])
    for value, final in (("0.1", 0.5), ("0.5", 0.7)):
        point = {"data.init_args.fraction": value}
        comparison.add_run(
            folder / "runs" / "default" / point_name(tuple(point.items())), "default", 0, final, (), False, point=point
        )
    table = load_results(folder)
    assert dict(zip(table["data.init_args.fraction"], table["test/accuracy"], strict=True)) == {"0.1": 0.5, "0.5": 0.7}


def test_only_runs_at_the_chosen_learning_rate_count(comparison):
    point = {"data.init_args.fraction": "0.1"}
    folder = comparison(
        {"default": {}}, grid={"data.init_args.fraction": ["0.1"]}, seeds=[0], learning_rates=[1e-3, 1e-2]
    )
    for rate, final in ((1e-3, 0.5), (1e-2, 0.7)):
        place = folder / "runs" / "default" / point_name(tuple(point.items())) / f"lr_{rate}"
        comparison.add_run(place, "default", 0, final, (), False, point=point, rate=rate)
    assert not load_results(folder)["chosen"].any()
    choice = {"chosen": 0.01, "validation": {"0.001": [0.5], "0.01": [0.7]}}
    (folder / "learning_rates.json").write_text(json.dumps({choice_name(tuple(point.items())): {"default": choice}}))
    table = load_results(folder)
    assert list(table[table["chosen"]]["learning_rate"]) == [0.01]


def test_a_folder_without_a_comparison_is_one_line(tmp_path):
    with pytest.raises(StructuredInitError, match="holds no comparison"):
        load_results(tmp_path)


def test_a_folder_from_before_plans_is_refused_with_the_way_out(comparison):
    folder = comparison(VALUES, pieces=())
    (folder / "plan.json").rename(folder / "comparison.json")
    with pytest.raises(StructuredInitError, match=r"before plans stood in 'plan\.json': rename its comparison\.json"):
        read_runs(folder, Wanted())


def test_a_name_that_no_system_takes_is_one_line(tmp_path):
    with pytest.raises(StructuredInitError, match="there is no '"):
        read_runs(tmp_path / ("x" * 300), Wanted())


RUN = "runs/default/seed_0"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("plan.json", "[1]", "it holds a list, not keys and values"),
        ("plan.json", "{}", "it has no 'arms', so no comparison wrote it"),
        (f"{RUN}.settings.json", "{}", "it has no 'arm', so no comparison wrote it"),
        (f"{RUN}/result.json", "{}", "it has no 'metrics', so no comparison wrote it"),
        (
            f"{RUN}/result.json",
            '{"metrics": ' + "[" * 200_000,
            "maximum recursion depth exceeded while decoding a JSON array",
        ),
    ],
)
def test_a_file_that_no_comparison_has_written_is_one_line(comparison, file, text, said):
    folder = comparison(VALUES, pieces=())
    (folder / file).write_text(text)
    with pytest.raises(StructuredInitError) as caught:
        load_results(folder)
    answer, way_out = str(caught.value).replace(" from a unicode string", "").rsplit(": ", 1)
    assert (answer, way_out) == (
        f"cannot read '{folder / file}': {said}",
        "bring back a copy",
    )


def test_a_log_that_holds_no_numbers_is_named(comparison):
    folder = comparison(VALUES, pieces=())
    (folder / RUN / "metrics.csv").write_text("step,epoch,val/loss\n1,0,0.5\n2,0,x\n")
    with pytest.raises(StructuredInitError, match=r"metrics.csv': could not convert string to float: 'x'"):
        load_curves(folder)


@pytest.mark.parametrize(("text", "said"), [("", "No columns to parse"), ("a,b\n1,2\n", "it has no column 'arm'")])
def test_a_published_table_that_is_none_is_one_line(comparison, text, said):
    folder = comparison({"default": {}}, seeds=[0])
    (folder / "results.csv").write_text(text)
    with pytest.raises(StructuredInitError, match=rf"^cannot read '{folder}/results.csv': {said}"):
        load_results(folder)


NAMES = ["=1+1", "-2+3", "'quoted", '=HYPERLINK("x","y")', "01", "None"]


def test_what_a_report_wrote_is_read_back_with_its_names_and_places(comparison):
    values = {"default": {0: 0.5}, **{name: {0: 0.6} for name in NAMES}}
    folder = comparison({"default": {}}, arms=dict.fromkeys(values, None), grid={"key": ["-0.5", "01"]}, seeds=[0])
    for place, (arm, of_arm) in enumerate(values.items()):
        for number, value in enumerate(("-0.5", "01")):
            run = folder / "runs" / f"{place}_{number}"
            comparison.add_run(run, arm, 0, of_arm[0], (), True, point={"key": value})
    first, curves = load_results(folder), load_curves(folder)
    for name, frame in (("results.csv", first), ("curves.csv", curves)):
        frame.to_csv(folder / name, index=False)
    shutil.rmtree(folder / "runs")
    pd.testing.assert_frame_equal(load_results(folder), first, check_dtype=False)
    pd.testing.assert_frame_equal(load_curves(folder), curves, check_dtype=False)
    own = folder / "own.csv"  # a table of one's own
    first[first["key"] == "01"].to_csv(own, index=False)
    assert set(read_elsewhere(own, Wanted("test/accuracy")).manifest.arms) == set(values)
