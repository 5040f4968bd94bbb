"""A comparison made up by numbers: what a folder holds after ``compare``, with known effects."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from compared import MadeUp
from safetensors.torch import save_file

from comparison.command import comparing
from structured_init.analysis import gram_matrix, summarize

LAYERS = ("network.blocks.0.attn", "network.blocks.1.attn")
ATTENTION = {"mimetic": ["Mimetic: query_key"], "sincos": []}


def entry(name, set_by, rms=0.5):
    after = {"mean": 0.0, "std": rms, "rms": rms} if set_by else None
    known = {"names": [name], "shape": [2, 3], "set_by": set_by}
    return known | {"before": after, "after": after, "trainable": True}


def init_report(arm, seed):
    positions = {"sincos": ["Positions: sincos"], "mimetic": ["Mimetic: positions"]}.get(arm, [])
    entries = [
        entry("network.pos_embed", positions),
        entry("network.blocks.0.attn.qkv.weight", ATTENTION.get(arm, []), 0.1 + seed),
        entry("network.head.weight", []),
    ]
    return {"initializer": f"{arm}()", "seed": seed, "entries": entries, "skipped": {}, "notes": {}, "warnings": []}


def add_attention(run, generator):
    folder = run / "attention"
    folder.mkdir()
    captures, statistics = {}, {}
    for moment in ("before", "after"):
        maps = {layer: torch.rand(2, 2, 9, 9, generator=generator).mul(3).softmax(-1) for layer in LAYERS}
        save_file(maps, folder / f"{moment}.safetensors")
        captures[moment] = {"layers": {layer: {"grid": [3, 3], "prefix_tokens": 0} for layer in LAYERS}}
        statistics[moment] = {layer: summarize(maps[layer], (3, 3)) for layer in LAYERS}
    (folder / "meta.json").write_text(json.dumps({"captures": captures}))
    (folder / "statistics.json").write_text(json.dumps(statistics))


def add_representations(run, generator):
    (run / "representations").mkdir()
    for moment in ("before", "after"):
        blocks = ("network.blocks.0", "network.blocks.1")
        grams = {block: gram_matrix(torch.randn(8, 5, generator=generator))[None].float() for block in blocks}
        save_file(grams, run / "representations" / f"{moment}.safetensors")


def add_metrics(run, finals, epochs, seconds):
    """Write curves that rise linearly to the final value, one evaluation per epoch of ten steps."""
    fields = ["epoch", "step", *(["seconds"] if seconds else []), "test/accuracy", "val/accuracy", "val/loss"]
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        for epoch in range(epochs):
            value = finals * (epoch + 1) / epochs
            row = {"epoch": epoch, "step": 10 * (epoch + 1) - 1, "val/accuracy": value, "val/loss": 1 - value}
            writer.writerow({**row, **({"seconds": 2.0 * (epoch + 1)} if seconds else {})})
        writer.writerow({"epoch": epochs, "step": 10 * epochs, "test/accuracy": finals})


@pytest.fixture
def comparison(tmp_path):
    """A factory of folders, of which a test has one: see `comparison_in`."""
    return comparison_in(tmp_path)


@pytest.fixture(scope="module")
def shared_comparison(tmp_path_factory):
    """The same for a folder that several tests read."""
    return comparison_in(tmp_path_factory.mktemp("shared"))


def comparison_in(place):
    """A factory of folders: ``values`` is arm → final accuracy by seed, as a fraction.

    ``leave_out`` names runs (arm, seed) that never started, ``fail`` those that failed with a reason.
    """

    def build(
        values, grid=None, pieces=("attention", "representations"), seconds=True, leave_out=(), fail=(), **changes
    ):
        folder = place / "comparison"
        seeds = sorted({seed for of_arm in values.values() for seed in of_arm})
        manifest = {
            **{"version": 1, "experiment": ["vit_digits"], "command": "structured-init compare -c vit_digits"},
            **{"arguments": ["--trainer.max_epochs", "4"], "threads": 1, "metric": "test/accuracy", "mode": "max"},
            **{"baseline": next(iter(values)), "controls": {}, "seeds": seeds, "learning_rates": []},
            **{"arms": {arm: {"init": arm, "overrides": {}} for arm in values}, "grid": grid or {}},
            **changes,
        }
        folder.mkdir(exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(manifest))
        for arm, of_arm in values.items():
            for seed, final in of_arm.items():
                if (arm, seed) not in leave_out:
                    reason = dict(fail).get((arm, seed))
                    add_run(folder / "runs" / arm, arm, seed, final, pieces, seconds, reason)
        return folder

    def add_run(place, arm, seed, final, pieces, seconds, reason=None, point=None, rate=None):
        run = place / f"seed_{seed}"
        run.mkdir(parents=True)
        known = {"arm": arm, "seed": seed, "point": point or {}, "learning_rate": rate}
        run.with_name(f"seed_{seed}.settings.json").write_text(json.dumps({**known, "threads": 1, "arguments": []}))
        (run / "init_report.json").write_text(json.dumps(init_report(arm, seed)))
        (run / "experiment.yaml").write_text("data: {init_args: {batch_size: 64}}\ntrainer: {devices: 1}\n")
        if reason:
            run.with_name(f"seed_{seed}.failed.json").write_text(json.dumps({"reason": reason, "traceback": None}))
            return
        generator = torch.Generator().manual_seed(seed + 100 * len(arm))
        add_metrics(run, final, 4, seconds)
        if "attention" in pieces:
            add_attention(run, generator)
        if "representations" in pieces:
            add_representations(run, generator)
        metrics = {"val/accuracy": final, "val/loss": 1 - final, "test/accuracy": final}
        environment = {"processor": "abacus", "threads": 1, "torch": "2.0"}
        result = {**known, "metrics": metrics, "epochs": 4, "steps": 40, "seconds": 8.0, "environment": environment}
        (run / "result.json").write_text(json.dumps(result))

    build.add_run = add_run
    return build


@pytest.fixture(scope="session")
def known_effects():
    """Arm → accuracy by seed: sincos is 5 points above default, mimetic 1 above sincos, each with noise of its own."""
    rng = np.random.default_rng(0)
    base = {seed: 0.80 + 0.02 * rng.standard_normal() for seed in range(3)}
    sincos = {seed: value + 0.05 + 0.002 * rng.standard_normal() for seed, value in base.items()}
    mimetic = {seed: value + 0.01 + 0.02 * rng.standard_normal() for seed, value in sincos.items()}
    return {"default": base, "sincos": sincos, "mimetic": mimetic}


@pytest.fixture
def made_up(monkeypatch):
    """Runs give numbers that a test makes up, and no report is written."""
    monkeypatch.setattr(comparing, "LocalLauncher", MadeUp)
    monkeypatch.setattr(comparing, "_report", lambda *_: None)
    monkeypatch.setattr(MadeUp, "trained", [])
    monkeypatch.setattr(MadeUp, "most", math.inf)
    return MadeUp
