"""``compare --margin`` and ``--precision``: seeds are added where they help, until every difference is decided.

The runs give numbers that a test makes up, so that what is decided, and after which seed, is known.
"""

import contextlib

import pytest
from compared import MadeUp, prepared

from comparison.command import comparing
from comparison.contrasts.contrasts import decide
from comparison.contrasts.place import look
from comparison.runs.folder import Question, read_manifest
from comparison.runs.metric import Metric
from lightning_modules.cli import main

NOISE = [0.4, -0.7, 0.1, 0.9, -0.5, -0.2, 0.6, -0.9, 0.3, 0.0, 0.8, -0.3, -0.6, 0.5, -0.1, 0.7]
GAIN = {"default": 0.0, "sincos": 1.0, "codes": 0.05}  # points
QUICK = ["--trainer.limit_train_batches=2"]


def accuracy(arm, seed):
    """Percent: what a seed's runs share, the arm's gain, and noise of its own."""
    own = 0.0 if arm == "default" else NOISE[seed % len(NOISE)] * (1 if arm == "sincos" else 0.8)
    return 50 + seed % 7 + GAIN[arm] + own


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(comparing, "prepare", prepared)


@pytest.fixture
def compare(folder, made_up, monkeypatch):
    monkeypatch.setattr(made_up, "value", staticmethod(lambda run: accuracy(run.arm, run.seed)))
    return lambda *arguments: main(["compare", "-c", "tiny.yaml", "--output", "out", *QUICK, *arguments])


def differences(arm, seeds):
    return [accuracy(arm, seed) - accuracy("default", seed) for seed in range(seeds)]


def expected(arm, question, arms=1):
    """The number of seeds at which it is decided, among so many arms together."""
    question = question.of_family(arms)
    kinds = {n: decide(differences(arm, n), question, Metric("test/accuracy")).verdict for n in (5, 10, 20, 40)}
    return min(n for n, kind in kinds.items() if kind != "undecided")


def seeds_of(arm):
    return [seed for name, seed, _ in MadeUp.trained if name == arm]


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
    undisturbed = list(MadeUp.trained)
    MadeUp.trained.clear()
    again = ["--inits", "default,sincos", "--margin", "0.5", "--output", "second"]
    for most in (3, 11, len(undisturbed)):
        MadeUp.most = most
        with contextlib.suppress(SystemExit):  # of an interruption
            compare(*again)
        assert len(MadeUp.trained) == most
    assert MadeUp.trained == undisturbed


def test_a_later_command_keeps_the_question_and_a_new_arm_takes_the_seeds_of_the_others(quickly, compare, folder):
    compare("--inits", "default,sincos", "--margin", "0.5")
    before = set(MadeUp.trained)
    MadeUp.trained.clear()
    compare("--inits", "default,sincos,codes", "--seeds", "0-4")
    codes = expected("codes", Question(margin=0.5), arms=2)
    assert seeds_of("codes") == list(range(codes))
    assert not before & set(MadeUp.trained)
