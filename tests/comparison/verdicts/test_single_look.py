"""Tests of runs that nothing pairs: beside a fixed target, and two arms without common seeds."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from scipy import special

from lightning_modules.cli import main

LOSSES = [3.2781, 3.2790, 3.2776, 3.2785, 3.2793, 3.2779, 3.2784, 3.2788]
OTHERS = [3.2830, 3.2811, 3.2852, 3.2807]


def table(path, *lines):
    (path / "runs.csv").write_text("\n".join(lines) + "\n")
    return str(path / "runs.csv")


def said(capsys, *arguments):
    """Return the exit status, and what is printed for programs."""
    status = 0
    try:
        main(["judge", *arguments, "--json"])
    except SystemExit as stop:
        status = stop.code
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("target", "status"), [(3.28, 0), (3.2785, 1)])
def test_runs_without_seeds_are_held_against_a_target_by_students_test(tmp_path, capsys, target, status):
    file = table(tmp_path, "val_loss", *map(str, LOSSES))
    found, answer = said(capsys, file, "--target", str(target))
    t = (statistics.mean(LOSSES) - target) / statistics.stdev(LOSSES) * math.sqrt(8)
    assert answer["arms"][0]["p"] == pytest.approx(special.stdtr(7, t))
    assert (found, answer["status"], answer["arms"][0]["runs"]) == (status, status, 8)
    assert [each.name for each in tmp_path.iterdir()] == ["runs.csv"]  # nothing is remembered


def test_an_accuracy_is_held_against_a_target_in_percent_whether_it_is_a_fraction_or_not(tmp_path, capsys):
    for name, factor in (("accuracy", 1), ("accuracy", 100), ("Test Acc (%)", 100)):
        file = table(tmp_path, name, *(str(factor * each) for each in (0.9403, 0.9405, 0.9402, 0.9404)))
        assert said(capsys, file, "--target", "94")[0] == 0
        assert said(capsys, file, "--target", "94.1")[0] == 1


def test_arms_without_common_seeds_are_compared_by_welchs_test(tmp_path, capsys):
    rows = [f"new,{seed},{loss}" for seed, loss in enumerate(LOSSES)]
    rows += [f"main,{100 + seed},{loss}" for seed, loss in enumerate(OTHERS)]
    file = table(tmp_path, "arm,seed,val_loss", *rows)
    status, answer = said(capsys, file, "--unpaired", "--baseline", "main")
    squares = [statistics.variance(runs) / len(runs) for runs in (LOSSES, OTHERS)]
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / 7 + squares[1] ** 2 / 3)  # Welch and Satterthwaite
    t = (statistics.mean(LOSSES) - statistics.mean(OTHERS)) / math.sqrt(sum(squares))
    assert answer["arms"][0]["p"] == pytest.approx(special.stdtr(freedom, t))
    assert status == int(special.stdtr(freedom, t) >= 0.01)
    assert "Welch's test, unpaired" in answer["arms"][0]["text"]


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (("arm,seed,loss", "a,0,1", "a,1,2", "b,0,1", "b,1,3"), ["--unpaired"], "have seeds in common: leave out"),
        (("loss", "1", "1"), ["--target", "2"], "agree to the last digit"),
        (("loss", "1"), ["--target", "2"], "has 1 runs: a test needs two or more"),
        (("step,loss", "1,1", "2,3"), ["--target", "2"], "has a column 'step' and no seeds"),
        (("loss", "1", "3"), ["--target", "2", "--margin", "1"], "one test, which takes no margin"),
        (("loss", "1", "3"), ["--target", "nan"], "argument --target: expected a number, got 'nan'"),
        (("loss", "1", "3"), ["--target=-1e999"], "argument --target: expected a number, got '-1e999'"),
    ],
)
def test_what_a_single_look_cannot_answer_is_refused(tmp_path, capsys, lines, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["judge", table(tmp_path, *lines), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
