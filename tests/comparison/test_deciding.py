"""``compare --margin`` and ``--precision``: seeds are added where they help, until every difference is decided.

The runs give numbers that a test makes up, so that what is decided, and after which seed, is known.
"""

import contextlib
import dataclasses
from pathlib import Path

import pytest
from compared import AtOnce

from comparison.command import comparing
from comparison.contrasts.contrasts import decide
from comparison.contrasts.place import look
from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.plan.further_seeds import question_from
from comparison.runs.folder import Manifest, Question, read_manifest
from comparison.runs.metric import Metric
from lightning_modules.cli import main

NOISE = [0.4, -0.7, 0.1, 0.9, -0.5, -0.2, 0.6, -0.9, 0.3, 0.0, 0.8, -0.3, -0.6, 0.5, -0.1, 0.7]
GAIN = {"default": 0.0, "sincos": 1.0, "codes": 0.05}  # points
QUICK = ["--trainer.limit_train_batches=2"]


def accuracy(arm, seed):
    """Percent: what a seed's runs share, the arm's gain, and noise of its own."""
    own = 0.0 if arm == "default" else NOISE[seed % len(NOISE)] * (1 if arm == "sincos" else 0.8)
    return 50 + seed % 7 + GAIN[arm] + own


class Pretend(AtOnce):
    """Runs are complete at once, with what ``accuracy`` says."""

    trained: list = []  # noqa: RUF012
    most: float = float("inf")  # runs that it starts before it is interrupted

    def do(self, run):
        if len(Pretend.trained) >= Pretend.most:
            raise KeyboardInterrupt
        Pretend.trained.append((run.arm, run.seed))
        value = accuracy(*Pretend.trained[-1]) / 100
        metrics = {"val/accuracy": value, "test/accuracy": value}
        run.folder.mkdir(parents=True)
        run.write_settings()
        run.write_result({"metrics": metrics, "epochs": 1, "steps": 2, "seconds": 60.0, "tested": True})


def prepared(options, further, command):
    """What ``prepare`` returns, without a look at the experiment, which takes a second."""
    arms = parse_arms(options.inits)
    given = {"folder": Path(options.output), "experiment": ["tiny.yaml"], "seeds": options.seeds or [0, 1, 2, 3, 4]}
    comparison = Comparison(arms=arms, **given)
    known = comparison.known() or Manifest(arms={})
    references = {"metric": "test/accuracy", "mode": "max", "baseline": "default"}
    return dataclasses.replace(comparison, question=question_from(options, known), **references)


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(comparing, "prepare", prepared)


@pytest.fixture
def compare(folder, monkeypatch):
    monkeypatch.setattr(comparing, "LocalLauncher", Pretend)
    monkeypatch.setattr(comparing, "_report", lambda *_: None)
    monkeypatch.setattr(Pretend, "trained", [])
    monkeypatch.setattr(Pretend, "most", float("inf"))
    return lambda *arguments: main(["compare", "-c", "tiny.yaml", "--output", "out", *QUICK, *arguments])


def differences(arm, seeds):
    return [accuracy(arm, seed) - accuracy("default", seed) for seed in range(seeds)]


def expected(arm, question, arms=1):
    """The number of seeds at which it is decided, among so many arms together."""
    question = question.of_family(arms)
    kinds = {n: decide(differences(arm, n), question, Metric("test/accuracy")).verdict for n in (5, 10, 20, 40)}
    return min(n for n, kind in kinds.items() if kind != "undecided")


def seeds_of(arm):
    return [seed for name, seed in Pretend.trained if name == arm]


def test_each_arm_gets_the_seeds_that_decide_it_and_the_baseline_those_of_the_longest(compare, folder, capsys):
    compare("--inits", "default,sincos,codes", "--margin", "0.5")
    asked = Question(margin=0.5)
    sincos, codes = expected("sincos", asked, arms=2), expected("codes", asked, arms=2)
    assert 5 < sincos < codes == 20
    assert seeds_of("sincos") == list(range(sincos))
    assert seeds_of("codes") == list(range(codes))
    assert seeds_of("default") == list(range(max(sincos, codes)))
    assert "All differences are decided." in capsys.readouterr().out
    (found,) = look(folder / "out", read_manifest(folder / "out"))
    kinds = {each.arm: each.verdict for each in found.contrasts}
    assert kinds == {"sincos": "better", "codes": "equivalent"}


def test_an_interrupted_comparison_goes_on_with_the_same_seeds(quickly, compare):
    words = ["--inits", "default,sincos", "--margin", "0.5"]
    compare(*words)
    undisturbed = list(Pretend.trained)
    Pretend.trained.clear()
    again = ["--inits", "default,sincos", "--margin", "0.5", "--output", "second"]
    for most in (3, 11, len(undisturbed)):
        Pretend.most = most
        with contextlib.suppress(SystemExit):  # of an interruption
            compare(*again)
        assert len(Pretend.trained) == most
    assert Pretend.trained == undisturbed


def test_a_later_command_keeps_the_question_and_a_new_arm_takes_the_seeds_of_the_others(quickly, compare, folder):
    compare("--inits", "default,sincos", "--margin", "0.5")
    before = set(Pretend.trained)
    Pretend.trained.clear()
    compare("--inits", "default,sincos,codes", "--seeds", "0-4")
    codes = expected("codes", Question(margin=0.5), arms=2)
    assert seeds_of("codes") == list(range(codes))
    assert not before & set(Pretend.trained)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--margin", "1", "--precision", "1"], "argument --precision: not allowed with argument --margin"),
        (["--max-seeds", "10"], "--max-seeds limits what --precision or --margin asks for"),
        (["--margin", "1", "--max-seeds", "4"], "argument --max-seeds: invalid choice: 4"),
        (["--margin", "0"], "argument --margin: expected a number above 0, got '0'"),
    ],
)
def test_a_question_that_cannot_be_is_refused_in_one_line(compare, complaint, folder, arguments, message):
    assert message in complaint(compare, "--inits", "default,sincos", *arguments)
    assert not (folder / "out").exists()
