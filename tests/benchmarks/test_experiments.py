"""The comparisons behind the pages of results: their commands can be run, and their tables are those of the pages."""

from __future__ import annotations

import itertools
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks import experiment_tables, experiments
from benchmarks.experiments import CONVOLUTION, EXPERIMENTS, KERNEL, RECALL, STATE
from comparison.command import compare_parser
from comparison.results.records import load_results
from comparison.run.arms import parse_arms
from comparison.run.prepare import prepare
from lightning_modules.cli.configurations import find_config

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CURVE = {"default": (0.5, 0.6), "token_softmax/deform": (0.5, 0.4)}


def page(name):
    return (RESULTS / name).read_text(encoding="utf-8")


def row(seed, accuracy, **more):
    return {"arm": "default", "seed": seed, "test/accuracy": accuracy, **more}


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith("|") and "---" not in line]


# The tables of pages, from the numbers that are committed beside them.


def test_the_page_of_filters_holds_the_tables_of_its_numbers():
    text = experiment_tables.filters(load_results(RESULTS / "conv_cifar10"), KERNEL)
    assert len(rows_of(text)) == 2 + 12 + 6
    assert text.rpartition("\n\n")[0] in page("conv_cifar10.md")


@pytest.mark.parametrize("name", RECALL)
def test_the_page_of_recall_holds_the_tables_of_its_numbers(name):
    lines = experiment_tables.exact(load_results(RESULTS / "recall" / name), STATE)
    assert len(lines) > 5
    assert "\n".join(lines) in page("recall.md")


def test_the_page_of_deformations_holds_the_numbers_of_its_table():
    results = pd.concat(
        [load_results(folder) for folder in sorted((RESULTS / "compact" / "deformation").glob("seed_*"))]
    )
    lines = rows_of(experiment_tables.deformation(results))[1:]
    assert len(lines) == 5
    shown = [re.split(r" \| ", line.strip("| ")) for line in page("compact.md").splitlines() if line.startswith("| `")]
    for line in lines:
        arm, _, accuracy, *apart = re.split(r" \| ?", line.strip("| "))
        assert [each for each in shown if each[0] == arm and each[2:] == [accuracy, *apart]], line


# Tables of results that are made up, by hand.


def certified(**accuracies):
    return pd.DataFrame(
        [
            {
                **{CONVOLUTION: conv, "seed": seed, "test/accuracy": value, "test/certified_accuracy_36": value / 2},
                **{"test/certified_accuracy_108": 0.0, "test/pgd_accuracy_36": value},
                **{"test/lipschitz_upper": 1.0 + seed, "seconds": 60.0},
            }
            for conv, values in accuracies.items()
            for seed, value in enumerate(values)
        ]
    )


def test_certified_rows_go_from_clean_over_certified_to_attacked_and_differences_are_within_a_seed():
    lines = rows_of(experiment_tables.certified(certified(cayley=[0.5, 0.7], plain=[0.4, 0.6]), CONVOLUTION))
    assert lines[0] == "| test | cayley (2 seeds) | plain (2 seeds) |"
    heads = [line.split(" |")[0].removeprefix("| ") for line in lines[1:]]
    assert heads[:4] == ["clean %", "certified 36/255 %", "certified 108/255 %", "PGD 36/255 %"]
    assert heads[4:] == ["Lipschitz, bound", "seconds a run"]
    assert lines[1] == "| clean % | 60.0 ± 127.1 (+10.0) | 50.0 ± 127.1 |"  # t = 12.706, sd = 14.14, n = 2
    assert lines[5] == "| Lipschitz, bound | 1 – 2 | 1 – 2 |"


def filters(accuracies):
    return pd.DataFrame(
        [
            row(seed, value, arm=arm) | {KERNEL: kernel}
            for (arm, kernel), values in accuracies.items()
            for seed, value in enumerate(values)
        ]
    )


def test_differences_are_to_the_default_and_gaps_to_the_filters_that_are_trained():
    trained = {("default", 3): [0.50, 0.52], ("default", 9): [0.54, 0.56]}
    frozen = {("default_frozen", 3): [0.49, 0.51], ("default_frozen", 9): [0.50, 0.52]}
    lines = rows_of(experiment_tables.filters(filters(trained | frozen), KERNEL))
    assert lines[0] == "| initialization | kernel 9 | − default | kernel 3 | − default |"
    assert lines[2] == "| default_frozen | 51.0 ± 12.7 | −4.0 | 50.0 ± 12.7 | −1.0 |"  # t = 12.706
    assert lines[3] == "| initialization | gap at kernel 9 | gap at kernel 3 | growth, 3 to 9 |"
    assert lines[4] == "| default | −4.0 | −1.0 | −3.0 |"


# Commands.

GIVEN = Namespace(weights="learned.pth", only=None)
COMMANDS = {
    f"{name} {folder}": words
    for name in ("certified", "filters", "recall")
    for folder, words in EXPERIMENTS[name].commands(GIVEN).items()
}
WIDEST = ("certified ", "recall mqar_components", "recall mqar_states", "recall copying_components")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_words_of_a_command_are_known(name):
    options, further = compare_parser().parse_known_args([*COMMANDS[name], "--output", "out"])
    assert all(find_config(config).files[-1].is_file() for config in options.config)
    assert "default" in parse_arms(options.inits)
    assert "," in options.inits or options.grid
    assert all(word.startswith("--") for word in further[::2])


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDEST)
def test_a_comparison_is_one_that_can_be_run(name, tmp_path):
    options, further = compare_parser().parse_known_args([*COMMANDS[name], "--output", str(tmp_path / "out")])
    comparison = prepare(options, further, "")
    assert comparison.metric.startswith("test/")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Runs of two seeds, and of a third that is complete in another arm only."""
    found = [
        SimpleNamespace(arm=arm, seed=seed, result={} if complete else None, folder=tmp_path / arm / str(seed))
        for arm, seed, complete in (("default", 0, True), ("default", 1, True), ("default", 2, False), ("add", 2, True))
    ]
    monkeypatch.setattr(experiments, "find_runs", lambda folder: found)
    return found


def run(monkeypatch, *words, results, curves=None):
    """Run the command without training anything; return what it would have trained."""
    commands = []
    monkeypatch.setattr(experiments, "compare", commands.append)
    monkeypatch.setattr(experiments, "load_results", results)
    monkeypatch.setattr(experiments, "load_curves", curves)
    monkeypatch.setattr(sys, "argv", ["experiments", *words])
    experiments.main()
    return commands


def test_each_network_is_deformed_with_its_own_seed(trained, tmp_path, monkeypatch, capsys):
    def results(folder):
        seed = int(folder.name[-1])
        return pd.DataFrame([row(seed, 0.6), row(seed, 0.4 + 0.01 * seed, arm="token_softmax/deform")])

    def curves(folder):
        seed = int(folder.name[-1])
        points = [(arm, place, value) for arm, values in CURVE.items() for place, value in enumerate(values)]
        run = {"metric": "val/accuracy", "seed": seed}
        return pd.DataFrame([{**run, "arm": arm, "step": 100.0 * (n + 1), "value": value} for arm, n, value in points])

    output = tmp_path / "out"
    words = ["deformation", "--weights", str(tmp_path), "--output", str(output), "--trainer.devices", "1"]
    commands = run(monkeypatch, *words, results=results, curves=curves)
    for seed, command in enumerate(commands):
        given = dict(itertools.pairwise(command))
        assert given["--seeds"] == str(seed)
        assert given["--model.init_args.network_args.weights"].endswith(f"default/{seed}/checkpoints/last.ckpt")
        assert given["--output"] == str(output / f"seed_{seed}")
        assert command[-2:] == ["--trainer.devices", "1"]
    assert len(commands) == 2
    assert "| `token_softmax/deform` | 2 | 40.5 ± 6.4 | −19.5 |" in (output / "deformation.md").read_text()
    assert "| `default` | 2 | 60.0 ± 0.0 |  |" in capsys.readouterr().out
    assert (output / "deformation.png").stat().st_size > 1000
