"""The tables of the benchmark of recall, and the commands behind them."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from benchmarks import recall_starts
from benchmarks.recall_starts import COMPARISONS, STATE, tables
from comparison.command import compare_parser
from comparison.run.prepare import prepare


def row(arm, seed, rate, value, *, chosen, state=None):
    lengths = {"test/exact_match_8": value, "test/exact_match_16": value / 2, "test/exact_match_32": 0.0}
    point = {} if state is None else {STATE: state}
    test = lengths if chosen else dict.fromkeys(lengths, float("nan"))
    run = {"arm": arm, "seed": seed, "learning_rate": rate, "chosen": chosen}
    return {**run, **point, "val/exact_match": value, **test}


def test_rates_are_compared_on_validation_and_lengths_on_test():
    rows = [row("default", seed, rate, 0.1 * seed, chosen=rate == 0.01) for seed in (0, 1) for rate in (0.001, 0.01)]
    rows += [row("other", seed, rate, 1.0, chosen=rate == 0.001) for seed in (0, 1) for rate in (0.001, 0.01)]
    text = tables(pd.DataFrame(rows))
    assert text[2:5] == ["| start | lr 0.001 | lr 0.01 |", "|---|---|---|", "| default | 5.0 ± 63.5 | 5.0 ± 63.5 |"]
    assert text[9] == "| start | rate | seeds | 1× | 2× | 4× | 1×, − default |"
    assert text[-1] == "| other | 0.001 | 2 | 100.0 ± 0.0 | 50.0 ± 0.0 | 0.0 ± 0.0 | +95.0 ± 63.5 |"


def test_a_start_is_compared_with_the_default_of_its_own_state():
    rows = [row("default", seed, 0.01, share, chosen=True, state=size) for seed in (0, 1) for size, share in SIZES]
    rows += [row("other", seed, 0.01, 1.0, chosen=True, state=size) for seed in (0, 1) for size, _ in SIZES]
    text = tables(pd.DataFrame(rows))
    assert text[0] == "Test, at the rate that was chosen:"  # one rate: nothing was swept
    differences = {tuple(line.split(" | ")[:2]): line.split(" | ")[-1] for line in text[4:] if "| other" in line}
    assert differences == {("| other", "16"): "+80.0 ± 0.0 |", ("| other", "128"): "+40.0 ± 0.0 |"}


SIZES = ((16, 0.2), (128, 0.6))


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_is_one_that_can_be_run(name, tmp_path):
    _, command = COMPARISONS[name]
    options, further = compare_parser().parse_known_args([*command, "--output", str(tmp_path / "out")])
    comparison = prepare(options, further, "")
    assert comparison.metric == "test/exact_match"
    assert "default" in comparison.arms


def test_tables_are_written_after_each_comparison(tmp_path, monkeypatch, capsys):
    trained = []
    rows = [row("default", seed, 0.01, 0.5, chosen=True) for seed in (0, 1)]
    monkeypatch.setattr(recall_starts, "compare", trained.append)
    monkeypatch.setattr(recall_starts, "load_results", lambda folder: pd.DataFrame(rows))
    monkeypatch.setattr(
        sys, "argv", ["recall_starts", "--only", "copying", "--output", str(tmp_path), "--trainer.devices", "1"]
    )
    recall_starts.main()
    assert trained[0][-2:] == ["--trainer.devices", "1"]
    assert "| default | 0.01 | 2 | 50.0 ± 0.0 |" in (tmp_path / "recall.md").read_text(encoding="utf-8")
    assert "## The same in 1,600 steps" in capsys.readouterr().out
