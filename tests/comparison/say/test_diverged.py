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

from comparison.intervals import holm
from comparison.say import write_report
from comparison.say.data import read_report_data
from comparison.say.writing import markdown, record

GOOD = {0: 0.80, 1: 0.81, 2: 0.79}


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
    for section in ("result", "curves", "attention", "initializations", "runs"):
        assert f'<section id="{section}">' in html
    text = (diverged / "report.md").read_text()
    assert re.search(r"\| wild \| 3 \(1 of 3 diverged\) \| [^|]* \| [^|]* \(2 pairs, not judged: a side", text)
    assert "| wilder | 3 (3 of 3 diverged) | – | nothing paired |" in text
    assert "→ –" in text  # attention that holds no number


def test_the_json_of_a_report_has_null_and_no_nan(diverged):
    text = (diverged / "results.json").read_text()
    arms = {each["name"]: each for each in json.loads(text, parse_constant=pytest.fail)["places"][0]["arms"]}
    assert arms["wilder"]["value"] is None
    assert arms["wild"]["diverged"] == [2]


def test_a_comparison_in_which_all_diverged_has_a_report(comparison):
    nothing = dict.fromkeys(GOOD, math.nan)
    folder = comparison({"default": nothing, "wild": nothing})
    for run in (folder / "runs").glob("*/seed_*/"):
        poison(run)
    text = report_text(folder, "result", "attention")
    assert "| default | 3 (3 of 3 diverged) | – | baseline |" in text
    assert "| wild | 3 (3 of 3 diverged) | – | nothing paired |" in text


def test_what_a_run_could_not_capture_is_shown_with_its_reason(comparison):
    folder = comparison({"default": GOOD, "wild": GOOD}, pieces=())
    why = "ValueError: the maps hold <nan>"
    assert "Not captured" not in report_text(folder, "runs")
    missing = {"attention": {"after": why}, "weight_products": {"before": "no space", "after": "no space left"}}
    (folder / "runs" / "wild" / "seed_1" / "missing.json").write_text(json.dumps(missing))
    text = report_text(folder, "runs")
    assert "| wild | 1 | attention | after | ValueError: the maps hold \\<nan> |" in text
    assert "| wild | 1 | weight_products | before | no space |" in text
    runs = record(read_report_data(folder))["runs"]
    assert [run["not_captured"] for run in runs if run["not_captured"]] == [missing]


def test_no_table_has_a_p_of_a_difference_whose_better_side_diverged_and_holms_method_counts_none(tmp_path):
    draw, gains = np.random.default_rng(0), {"default": 5, "better": 1, "as_good": 4.99, "worse": 9, "mine": 3}
    gains |= {"mine_scrambled": 4, "mine_positions": 2}
    values = {arm: gain + np.array([0.0, 1, 2, 3, 4]) + draw.normal(0, 0.2, 5) for arm, gain in gains.items()}
    for arm in ("better", "as_good", "worse", "mine_scrambled", "mine_positions"):
        values[arm][2] = math.nan
    rows = [f"{arm},{seed},{value}" for arm, of_arm in values.items() for seed, value in enumerate(of_arm)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,loss", *rows]))
    controls = {"mine": ["mine_scrambled", "mine_positions"]}
    data, sections = report_parts(tmp_path / "t.csv", "result", controls=controls)
    lines = markdown(data, sections).splitlines()
    of = {name: next(line for line in lines if line.startswith(f"| {name} ")) for name in values}
    for name in ("better", "as_good"):
        assert "(4 pairs, not judged: a side" in of[name]
    beside = [line for line in lines if line.startswith("| mine | mine_")]
    assert ["not judged" in line for line in beside] == [False, True]
    assert ["adjusted" in line for line in beside] == [True, False]
    assert "worse, adjusted" in of["worse"]
    judged = {each["p"]: each for each in record(data)["contrasts"] if each["adjusted"] is not None}
    p = {}
    for arm, other in (("worse", "default"), ("mine", "default"), ("mine", "mine_scrambled")):
        both = np.isfinite(values[arm] + values[other])
        p[arm, other] = stats.ttest_rel(values[arm][both], values[other][both]).pvalue
    assert [*judged] == pytest.approx([*p.values()])
    assert [each["adjusted"] for each in judged.values()] == pytest.approx([*holm(p).values()])
    assert [each["verdict"] for each in judged.values()] == ["worse", "better", "better"]
