"""benchmarks/published.py: it trains what ``fit`` trains, goes on where it stopped, and changes images as timm does."""

from __future__ import annotations

import dataclasses
import random
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import AugmentOp

from benchmarks import published
from benchmarks.device_images import CHANGES, augment, change
from comparison.runs.folder import find_runs
from comparison.runs.records import load_curves, load_results
from comparison.say.data import read_report_data
from comparison.train.run import attempt

WORDS = shlex.split(
    "-c vit_digits --inits mimetic --seeds 0,1 --trainer.max_epochs 3 --trainer.gradient_clip_val 1.0"
    " --model.init_args.warmup_epochs 1 --model.init_args.network_args {depth:\\ 2,embed_dim:\\ 32,num_heads:\\ 2}"
)
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # vmap has no fast rule for attention on a CPU


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two runs of two seeds, trained together to the end."""
    planned = published.plan(WORDS, tmp_path_factory.mktemp("published") / "digits")
    planned.write()
    assert published.train(planned.runs(), float("inf"), 4, CPU) == 0
    return planned


def curves(comparison, metric):
    """What the run of seed 1 logged, by step."""
    table = load_curves(comparison.folder)
    table = table[(table["seed"] == 1) & (table["metric"] == metric)]
    return dict(zip(table["step"], table["value"], strict=True))


def test_the_same_networks_are_trained_as_by_fit(comparison, tmp_path):
    fitted = dataclasses.replace(comparison, folder=tmp_path)
    fitted.write()
    assert attempt(fitted.runs()[1]) is None
    for metric in ("train/loss", "val/loss", "val/accuracy"):
        assert curves(comparison, metric) == pytest.approx(curves(fitted, metric), rel=1e-3)
    assert [*curves(comparison, "val/loss")] == [20, 40, 60]


def test_a_killed_run_goes_on_as_if_it_had_not_been(comparison, tmp_path, monkeypatch):
    alone = dataclasses.replace(comparison, folder=tmp_path, seeds=[1])
    alone.write()
    advance = published.Group.advance

    def advance_once(group, steps):
        if group.first.step:
            raise KeyboardInterrupt
        return advance(group, steps)

    monkeypatch.setattr(published, "SAVE_AFTER", -1.0)
    monkeypatch.setattr(published.Group, "advance", advance_once)
    with pytest.raises(KeyboardInterrupt):
        published.train(alone.runs(), float("inf"), 4, CPU)
    monkeypatch.undo()
    (run,) = alone.runs()
    assert published.reached(run) == 20
    assert published.train(alone.runs(), 0.0, 4, CPU) == 1  # no time is left
    assert published.train(alone.runs(), float("inf"), 4, CPU) == 0
    _, whole = find_runs(comparison.folder)
    assert run.latest().result["metrics"] == pytest.approx(whole.result["metrics"], rel=1e-4)


def test_a_report_reads_the_folder(comparison):
    results = load_results(comparison.folder)
    assert results[["arm", "seed", "steps"]].values.tolist() == [["mimetic", 0, 60], ["mimetic", 1, 60]]
    assert len(read_report_data(comparison.folder).judged) == 1


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_an_operation_is_timms(name, sign, monkeypatch):
    small = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    picture = Image.fromarray(small).resize((32, 32), Image.Resampling.BICUBIC)
    fill = (125, 120, 110)
    given = {"img_mean": fill, "interpolation": Image.Resampling.BILINEAR}
    monkeypatch.setattr(random, "random", lambda: 0.9 if sign < 0 else 0.1)
    theirs = np.asarray(AugmentOp(name, prob=1.0, magnitude=9, hparams=given)(picture), dtype=float)
    images = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    amount = torch.tensor(CHANGES[name][1](np.array([9.0]), np.array([sign]))).float().view(1, 1, 1, 1)
    ours = change(images, name, amount, torch.tensor(fill).view(3, 1, 1))[0].permute(1, 2, 0).numpy()
    assert np.quantile(abs(ours - theirs), 0.9) <= 1  # the rest are edges, which blend


def test_a_change_is_a_function_of_the_seed():
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    seeds = np.arange(64, dtype=np.uint64)
    given = {"crop_padding": 2, "flip": True, "fill": torch.zeros(3, 1, 1)}
    whole = augment(images, seeds, **given)
    torch.testing.assert_close(augment(images[5:9], seeds[5:9], **given), whole[5:9], rtol=0, atol=0)
    assert (whole != images).flatten(1).any(1).float().mean() > 0.9
