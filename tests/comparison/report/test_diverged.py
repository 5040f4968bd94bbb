"""A comparison in which runs diverged has a whole report, with the healthy runs in it and the others counted."""

from __future__ import annotations

import json
import math
import re
import warnings

import numpy as np
import pytest
import torch
from compared import report_parts, report_text
from safetensors.torch import load_file, save_file
from scipy import stats

from comparison.report import write_report
from comparison.report.data import read_report_data
from comparison.report.panels.curves import curve_figure
from comparison.report.theme import styles
from comparison.report.writing import latex, markdown, record
from comparison.results.metric import Metric
from comparison.results.paired import holm

GOOD = {0: 0.80, 1: 0.81, 2: 0.79}
LOSS = Metric("val/loss", "min")


def poison(run):
    """Everything that a run wrote after its training holds no number."""
    for path in run.glob("*/after.safetensors"):
        save_file({name: torch.full_like(each, math.nan) for name, each in load_file(path).items()}, path)
    path = run / "attention" / "statistics.json"
    statistics = json.loads(path.read_text())
    for of_layer in statistics["after"].values():
        for name, values in of_layer.items():
            of_layer[name] = [None if name == "entropy" else math.nan for _ in values]
    path.write_text(json.dumps(statistics))


@pytest.fixture(scope="module")
def diverged(shared_comparison):
    """The folder of a comparison with its report; ``wild`` diverges in one seed of three, ``wilder`` in all."""
    values = {
        "default": GOOD,
        "wild": {0: 0.9, 1: 0.912, 2: math.nan},
        "wilder": {0: math.nan, 1: math.inf, 2: -math.inf},
    }
    folder = shared_comparison(values, seconds=False)
    for arm, seeds in (("wild", [2]), ("wilder", [0, 1, 2])):
        for seed in seeds:
            poison(folder / "runs" / arm / f"seed_{seed}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(folder)
    return folder


def test_the_report_is_whole_and_says_what_diverged(diverged):
    html = (diverged / "report.html").read_text()
    for section in ("result", "curves", "steps", "attention", "layers", "similarity", "initializations", "runs"):
        assert f'<section id="{section}">' in html
    assert "Diverged: wild in 1 of 3 seeds and wilder in 3 of 3 seeds." in html
    assert "Means and differences of wild and wilder use only the seeds that did not diverge" in html
    assert "Not judged against default: wild" in html.replace("\N{NO-BREAK SPACE}", " ")
    assert "better than default" not in html.lower()
    assert "1 of 3 diverged" in (diverged / "report.md").read_text()


def test_the_json_of_a_report_has_null_and_no_nan(diverged):
    text = (diverged / "results.json").read_text()
    arms = {each["arm"]: each for each in json.loads(text, parse_constant=pytest.fail)["places"][0]["arms"]}
    assert arms["wilder"]["value"] is None
    assert arms["wild"]["diverged"] == [2]
    page = (diverged / "report.html").read_text()
    for name in ("attention", "similarity"):
        data = page.split(f'id="data-{name}">')[1].split("</script>")[0]
        json.loads(data, parse_constant=pytest.fail)  # the browser's JSON has no NaN
    shown = json.loads(page.split('id="data-attention">')[1].split("</script>")[0])["views"]["map"]["wilder"]
    assert shown["after"] == [[None] * 3] * 2
    assert all(picture for layer in shown["before"] for picture in layer)


def test_a_comparison_in_which_all_diverged_has_a_report(comparison):
    nothing = dict.fromkeys(GOOD, math.nan)
    folder = comparison({"default": nothing, "wild": nothing})
    for run in (folder / "runs").glob("*/seed_*/"):
        poison(run)
    text = report_text(folder, "result", "attention", "layers", "similarity")
    assert "Diverged: default in 3 of 3 seeds and wild in 3 of 3 seeds." in text
    assert "nothing can be paired" in text


@pytest.mark.parametrize("end", [math.nan, 1e30])
def test_curves_of_runs_that_diverge_leave_the_others_readable(end):
    steady = {seed: [(10.0, 2.0), (20.0, 1.0 + 0.1 * seed), (30.0, 0.9)] for seed in range(3)}
    wild = {0: [(10.0, 3.0), (20.0, 2.5), (30.0, 2.4)], 1: steady[1], 2: [(10.0, 2.0), (20.0, end), (30.0, math.nan)]}
    figure = curve_figure({"a": steady, "b": wild}, styles(["a", "b"], "a"), LOSS, "step", "a")
    (axis,) = figure.axes
    low, high = axis.get_ylim()
    assert low < 0.9
    assert 3 < high < 5  # the seeds that did not diverge are in sight too
    assert [text.get_text() for text in axis.texts] == ["a", "b (1 of 3 diverged)"]
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    figure.draw_without_rendering()


def test_what_a_run_could_not_capture_is_shown_with_its_reason(comparison):
    folder = comparison({"default": GOOD, "wild": GOOD}, pieces=())
    why = "ValueError: the maps hold <nan>"
    assert "Not captured" not in report_text(folder, "runs")
    missing = {"attention": {"after": why}, "weight_products": {"before": "no space", "after": "no space left"}}
    (folder / "runs" / "wild" / "seed_1" / "missing.json").write_text(json.dumps(missing))
    text = report_text(folder, "runs")
    assert "| wild | 1 | attention | after | ValueError: the maps hold \\<nan> |" in text
    assert "| wild | 1 | weight products | before | no space |" in text
    runs = record(read_report_data(folder))["runs"]
    assert [run["not_captured"] for run in runs if "not_captured" in run] == [missing]


def test_no_table_has_a_p_of_a_difference_whose_better_side_diverged_and_holms_method_counts_none(tmp_path):
    draw, gains = np.random.default_rng(0), {"default": 5, "better": 1, "as_good": 4.99, "worse": 9, "mine": 3}
    gains |= {"mine_scrambled": 4, "mine_positions": 2}
    values = {arm: gain + np.array([0.0, 1, 2, 3, 4]) + draw.normal(0, 0.2, 5) for arm, gain in gains.items()}
    for arm in ("better", "as_good", "worse", "mine_scrambled", "mine_positions"):
        values[arm][2] = math.nan
    rows = [f"{arm},{seed},{value}" for arm, of_arm in values.items() for seed, value in enumerate(of_arm)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,loss", *rows]))
    head, data, sections = report_parts(
        tmp_path / "t.csv", "result", "power", controls={"mine": ["mine_scrambled", "mine_positions"]}
    )
    text, tex = markdown(head, sections), latex(head, data)
    assert "corrected for all 3 differences of this page that are judged" in text
    for table in ([line for line in text.splitlines() if line.startswith("| ")], tex.replace("\\_", "_").splitlines()):
        of = {name: next(line for line in table if re.match(rf"(\| )?{name} ", line)) for name in values}
        for name in ("better", "as_good"):
            assert "4 pairs" in of[name]
            assert "not judged" in of[name]
            assert "adjusted" not in of[name]
        beside = [line for line in table if re.match(r"(\| )?mine [|&] (\\begin.*?}})?mine_", line)]
        assert ["not judged" in line for line in beside] == [False, True]
        assert ["adjusted" in line for line in beside] == [True, False]
        assert "adjusted" in of["worse"]
    assert "as_good − default" not in text  # in the table of what can be called different
    judged = {each["p"]: each for each in record(data)["contrasts"] if each["adjusted"] is not None}
    p = {}
    for arm, other in (("worse", "default"), ("mine", "default"), ("mine", "mine_scrambled")):
        both = np.isfinite(values[arm] + values[other])
        p[arm, other] = stats.ttest_rel(values[arm][both], values[other][both]).pvalue
    assert [*judged] == pytest.approx([*p.values()])
    assert [each["adjusted"] for each in judged.values()] == pytest.approx([*holm(p).values()])
    assert [each["verdict"] for each in judged.values()] == ["worse", "better", "better"]
