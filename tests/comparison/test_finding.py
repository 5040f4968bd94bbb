"""``find``: a race on validation, then fresh seeds and the test split; runs give numbers that a test makes up."""

import json
import math
import re

import pytest
import yaml
from compared import MadeUp, prepared

from comparison.command import comparing, find, finding
from comparison.command.options import compare_parser
from comparison.plan import candidates
from comparison.plan.prepare import prepare
from structured_init import StructuredInitError

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")  # that of a resumed run is not empty
QUICK = ["--trainer.limit_train_batches=4", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]
NOISE = [0.4, -0.7, 0.1, 0.9, -0.5, -0.2, 0.6]
GAIN = {"default": 0.0, "sincos": 4.0, "codes": -3.0, "mimetic": 4.0, "mimetic_scrambled": 0.0}  # points


@pytest.fixture
def gains():
    """Points by arm, which a test may change; None for one that cannot be trained."""
    return dict(GAIN)


@pytest.fixture
def search(folder, made_up, gains, monkeypatch):
    """Find with made-up numbers."""

    def value(run):
        gain = gains[run.arm]
        return None if gain is None else 50 + run.seed % 7 + gain + NOISE[(run.seed + len(run.arm)) % 7]

    monkeypatch.setattr(made_up, "value", staticmethod(value))
    monkeypatch.setattr(finding, "prepare", prepared)
    monkeypatch.setattr(comparing, "prepare", prepared)
    few = lambda words: [] if "--among" in words else ["--among", "sincos,codes"]  # noqa: E731
    return lambda *words: find(["-c", "tiny.yaml", *few(words), "--output", "out", *QUICK, *words])


def test_the_winner_is_shown_on_fresh_seeds_and_the_test_split_and_can_be_used(search, folder, capsys):
    search()
    raced = {seed for _, seed, tested in MadeUp.trained if not tested}
    shown = {seed for _, seed, tested in MadeUp.trained if tested}
    assert (raced, raced & shown) == ({0, 1, 2, 3, 4, 5}, set())
    assert {arm for arm, _, tested in MadeUp.trained if tested} == {"default", "sincos"}
    assert "Use sincos: -c out/found.yaml" in capsys.readouterr().out
    found = yaml.safe_load((folder / "out" / "found.yaml").read_text())
    assert found == {"init": {"initializer": {"class_path": "Positions"}}}
    said = json.loads((folder / "out" / "find.json").read_text())
    assert said["winner"] == "sincos"
    assert (said["metric"], said["mode"]) == ("val/accuracy", "max")
    assert 3 < said["gains"]["sincos"] < 5  # 4 points, with noise of half a point
    assert "fresh seeds, better" in said["verdict"]


@pytest.mark.parametrize(
    ("words", "arms", "said"),
    [
        ([], {"default", "mimetic", "mimetic_scrambled"}, "; against itself scrambled: +4.14 ± "),
        (["--controls", "none"], {"default", "mimetic"}, "; not compared with itself scrambled"),
    ],
)
def test_the_winner_is_also_compared_with_itself_scrambled_unless_that_is_refused(search, capsys, words, arms, said):
    search("--among", "mimetic", *words)
    assert {arm for arm, *_, tested in MadeUp.trained if tested} == arms
    assert {arm for arm, *_, tested in MadeUp.trained if not tested} == {"default", "mimetic"}  # none races
    assert said in capsys.readouterr().out


def test_a_search_that_was_stopped_goes_on_and_ends_alike(search, monkeypatch):
    search()
    undisturbed = list(MadeUp.trained)
    MadeUp.trained.clear()
    for most in (4, 20, math.inf):
        monkeypatch.setattr(MadeUp, "most", most)
        if most < math.inf:
            with pytest.raises(SystemExit) as stop:
                search("--output", "second")
            assert stop.value.code == 130
        else:
            search("--output", "second")
    assert MadeUp.trained == undisturbed


def test_the_default_is_kept_where_the_winner_is_not_better_on_fresh_seeds(search, folder, capsys, gains):
    gains["sincos"] = 0.1  # the race sees noise; the evidence does not confirm it
    search("--max-seeds", "10")
    verdict = "All 3 candidates tried. Keep your default. The best of the 3 tried is not shown to be better: sincos"
    assert verdict in capsys.readouterr().out
    said = json.loads((folder / "out" / "find.json").read_text())
    assert sorted(said["seeds"]) == sorted(said["candidates"])
    assert not (folder / "out" / "found.yaml").exists()


def test_nothing_is_raced_where_the_default_cannot_be_trained(search, gains):
    gains["default"] = None
    said = "nothing is raced, as the baseline cannot be trained: it has no memory"
    with pytest.raises(StructuredInitError, match=said):
        search("--among", "default,sincos")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--among", "sincs"], "there is no initialization 'sincs'"),
        (["--control", "auto"], "unknown option '--control': did you mean '--controls'?"),
        (["--grid", "data.fraction=0.1"], "unknown option '--grid'"),
        (["--max-seeds", "2"], "argument --max-seeds: invalid choice: 2"),
        (["--seeds", "98-100"], "--seeds: seeds from 100 on are those of the evidence, which no race takes"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(search, folder, words, message):
    with pytest.raises(StructuredInitError, match=re.escape(message)):
        search(*words)
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_candidates_are_what_fits_the_network_and_say_why_the_others_do_not(folder, monkeypatch):
    names = ("default", "mimetic", "mimetic_state_space", "impulse_adam", "kaiming_uniform", "uniform_projections")
    monkeypatch.setattr(candidates, "preset_names", lambda: names)
    words = ["-c", "tiny.yaml", "--inits", "default", "--output", "out"]
    comparison = prepare(compare_parser().parse_args(words), [], "")
    found, left_out = finding.automatic(comparison, [])
    assert list(found.arms) == ["default", "mimetic", "kaiming_uniform", "uniform_projections"]
    assert list(left_out) == ["mimetic_state_space", "impulse_adam"]  # no state in a transformer
    assert "its solver takes 10,000 steps" in left_out["impulse_adam"]
