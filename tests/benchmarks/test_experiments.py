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
from structured_init import StructuredInitError

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


def test_a_seed_that_one_convolution_has_not_finished_is_not_in_its_difference():
    lines = rows_of(experiment_tables.certified(certified(cayley=[0.5], plain=[0.4, 0.9]), CONVOLUTION))
    assert lines[1].startswith("| clean % | 50.0 (+10.0) |")


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


def test_one_kernel_has_no_growth():
    text = experiment_tables.filters(filters({("default", 9): [0.5, 0.6], ("default_frozen", 9): [0.4, 0.6]}), KERNEL)
    assert "growth" not in text.split("\n\n")[1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            lambda: experiment_tables.certified(certified(cayley=[0.5]), CONVOLUTION),
            "convolution 'plain': there are cayley",
        ),
        (
            lambda: experiment_tables.filters(filters({("box", 9): [0.5]}), KERNEL),
            "initialization 'default': there are box",
        ),
    ],
)
def test_without_what_others_are_compared_with_there_is_one_line(table, message):
    with pytest.raises(StructuredInitError, match=f"^no run has the {message}$"):
        table()


def recalled(arm, seed, rate, value, *, chosen, **point):
    lengths = {"test/exact_match_8": value, "test/exact_match_16": value / 2, "test/exact_match_32": 0.0}
    test = lengths if chosen else dict.fromkeys(lengths, float("nan"))
    run = {"arm": arm, "seed": seed, "learning_rate": rate, "chosen": chosen, **point}
    return {**run, "val/exact_match": value, **test}


def test_rates_are_compared_on_validation_and_lengths_on_test():
    runs = [recalled("default", s, rate, 0.1 * s, chosen=rate == 0.01) for s in (0, 1) for rate in (0.001, 0.01)]
    runs += [recalled("other", s, rate, 1.0, chosen=rate == 0.001) for s in (0, 1) for rate in (0.001, 0.01)]
    text = experiment_tables.exact(pd.DataFrame(runs), STATE)
    assert text[2] == "| initialization | lr 0.001 | lr 0.01 |"
    assert text[4] == "| default | 5.0 ± 63.5 | 5.0 ± 63.5 |"
    assert text[9] == "| initialization | rate | seeds | 1× | 2× | 4× | 1×, − default |"
    assert text[-1] == "| other | 0.001 | 2 | 100.0 ± 0.0 | 50.0 ± 0.0 | 0.0 ± 0.0 | +95.0 |"


def test_an_initialization_is_compared_with_the_default_of_its_own_state():
    sizes = ((16, 0.2), (128, 0.6))
    runs = [recalled("default", s, 0.01, share, chosen=True, **{STATE: size}) for s in (0, 1) for size, share in sizes]
    runs += [recalled("other", s, 0.01, 1.0, chosen=True, **{STATE: size}) for s in (0, 1) for size, _ in sizes]
    text = experiment_tables.exact(pd.DataFrame(runs), STATE)
    assert text[0] == "Test, at the rate that was chosen:"  # one rate: nothing was swept
    differences = {tuple(line.split(" | ")[:2]): line.split(" | ")[-1] for line in text[4:] if "| other" in line}
    assert differences == {("| other", "16"): "+80.0 |", ("| other", "128"): "+40.0 |"}


# Commands.

GIVEN = Namespace(weights="learned.pth", only=None)
COMMANDS = {
    f"{name} {folder}": words
    for name in ("certified", "filters", "recall", "sequences")
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


def test_filters_are_trained_and_frozen_and_learned_ones_come_with_weights():
    with_weights, without = (
        list(parse_arms(compare_parser().parse_known_args([*words, "--output", "out"])[0].inits))
        for words in (COMMANDS["filters "], experiments.filters(Namespace(weights=None))[""])
    )
    assert len(without) == 10
    assert with_weights == [*without, "learned", "learned_frozen"]
    assert {name.removesuffix("_frozen") for name in without[5:]} == set(without[:5])


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


def test_networks_to_deform_are_complete_and_one_for_each_seed(trained, tmp_path):
    trained[1].seed = 0
    with pytest.raises(StructuredInitError, match="several runs of 'default' for a seed"):
        experiments.trained_networks(tmp_path)
    trained[0].result = trained[1].result = None
    with pytest.raises(StructuredInitError, match="no complete run of 'default'"):
        experiments.trained_networks(tmp_path)
    with pytest.raises(StructuredInitError, match="deformation needs --weights"):
        experiments.deformation(Namespace(weights=None))


def test_another_configuration_takes_the_place_of_the_experiments_own(tmp_path, monkeypatch, capsys):
    results = certified(cayley=[0.5], plain=[0.4])
    words = ["certified", "-c", "resnet9_cifar10_short", "-c", "trainer/gpu", "--seeds", "7", "--output", str(tmp_path)]
    (command,) = run(monkeypatch, *words, results=lambda folder: results)
    options, further = compare_parser().parse_known_args(command)
    assert options.config == ["resnet9_cifar10_short", "trainer/gpu"]
    assert options.seeds == "7"
    assert options.grid == [f"{CONVOLUTION}=cayley,orthogonium,plain"]
    assert not further
    assert (tmp_path / "certified.md").read_text().strip() in capsys.readouterr().out


def test_tables_are_written_after_each_comparison(tmp_path, monkeypatch, capsys):
    seen = []

    def results(folder):
        seen.append((tmp_path / "recall.md").read_text() if seen else "")
        return pd.DataFrame([recalled("default", seed, 0.01, 0.5, chosen=True) for seed in (0, 1)])

    words = ["recall", "--only", "copying", "copying_components", "--output", str(tmp_path)]
    commands = run(monkeypatch, *words, results=results)
    assert [Path(command[command.index("--output") + 1]).name for command in commands] == words[2:4]
    assert "| default | 0.01 | 2 | 50.0 ± 0.0 |" in seen[1]
    assert "## The same in 1,600 steps" in capsys.readouterr().out


def test_a_comparison_that_there_is_not_is_named():
    with pytest.raises(StructuredInitError, match=r"^recall has no comparison 'mqar': it has mqar_learning_rates, "):
        experiments.recall(Namespace(only=["mqar"]))
