"""The benchmark of times stands on transcriptions: they do what was published, and both sides of a ratio agree.

Letters: H heads, N tokens, D embed_dim, k head_dim.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from benchmarks import init_against, init_time
from benchmarks.init_published import (
    FIXED_ORDER,
    adam_published,
    adam_solution,
    impulse_target,
    layer_norm,
    svd_layer,
    svd_published,
)
from structured_init import attention_sites
from structured_init.attention.impulse.solver import Basis
from structured_init.attention.impulse.svd import closed_form


def mass(attention, places, grid):
    """Mean attention on the impulse, over the queries whose impulse lies inside the grid."""
    targets = np.stack([impulse_target(place, grid) for place in places])
    return float((attention.numpy() * targets).sum() / targets.sum())


def maps(tokens, query, key):
    scale = query.shape[-1] ** -0.5
    return (scale * tokens @ query @ key.mT @ tokens.mT).softmax(dim=-1)


def test_the_svd_transcription_reaches_the_published_mass():
    """docs/impulse.md: 0.857 on ViT-T, 14 × 14 tokens, on positions only."""
    model = init_time.network(224, 16, 192, 1, 3)
    svd_published(model, torch.Generator().manual_seed(0))
    (site,) = attention_sites(model)
    tokens = torch.from_numpy(layer_norm(model.pos_embed[0].detach().double().numpy()))
    attention = maps(tokens, site.query.double(), site.key.double())
    assert mass(attention, FIXED_ORDER[:3], (14, 14)) == pytest.approx(0.857, rel=0.1)


def test_the_svd_transcription_and_the_library_give_one_product():
    """Both with their noise off: theirs is drawn inside."""
    grid, generator = (5, 6), torch.Generator().manual_seed(1)
    tokens = torch.randn(30, 24, dtype=torch.float64, generator=generator)
    targets = torch.from_numpy(np.stack([1000 * impulse_target(FIXED_ORDER[head], grid) for head in range(3)]))
    query, key = closed_form(Basis.of(tokens), targets, 8, norm=7.0)
    factors = svd_layer(tokens.numpy(), 3, 8, grid, generator)
    for head, (their_query, their_key) in enumerate(factors):
        ours, theirs = (query[head] @ key[head].mT).numpy(), their_query @ their_key.T
        assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(ours)  # the noise beside the impulse: 1.8 : 1000


def test_the_adam_transcription_goes_down_to_the_published_loss():
    """Reference runs: mean squared error .00373 at the start, with 3 heads on 16 × 16 tokens, then falling."""
    model = init_time.network(32, 2, 192, 1, 3)
    adam_published(model, 1, torch.Generator().manual_seed(0))
    tokens = torch.nn.functional.layer_norm(model.pos_embed[0].detach(), [192])
    targets = torch.tensor(np.stack([impulse_target(place, (16, 16)) for place in (4, 1, 5)])).float()
    losses = [
        adam_solution(tokens, targets, 64, iterations=steps, generator=torch.Generator().manual_seed(0))[2]
        for steps in (1, 120)
    ]
    assert losses[0] == pytest.approx(0.00373, rel=0.01)
    assert losses[1] < losses[0] - 1e-5


def test_mimetic_and_its_transcription_give_one_product_for_one_noise():
    found = init_against.differences((32, 8, 96, 1, 3))
    assert found["mimetic"]["query_key product"] < 1e-6  # both are stored in float64 here, computed in it as well
    assert found["mimetic"]["value_output product"] < 1e-6
    assert 1e-9 < found["mimetic, float32"]["query_key product"] < 1e-4
    assert 1e-9 < found["mimetic, float32"]["value_output product"] < 1e-4


PARTS = ("svd", "mimetic", "curve", "adam")  # memory forks, and pytest has threads


def test_memory_is_in_units_of_one_layer(monkeypatch):
    monkeypatch.setattr(init_time, "VIT_B", (32, 8, 96, 2, 3))
    monkeypatch.setattr(init_time, "TIMED", ("separable",))
    monkeypatch.setattr(init_time, "forked", lambda held, build, initialization: 1000 * len(build().blocks))
    (row,) = init_time.memory(None).values()
    layer = 4 * (12 * 96**2 + 13 * 96)  # attention, MLP and norms of a layer, float32
    assert row == {"2": pytest.approx(2000 / layer), "12": pytest.approx(12000 / layer)}


def test_the_command_writes_numbers_tables_and_the_picture(tmp_path, monkeypatch, capsys):
    arguments = ["--repeats", "1", "--adam-iterations", "3", "--max-width", "192"]
    monkeypatch.setattr(sys, "argv", ["init_time", "--parts", *PARTS, *arguments, "--output", str(tmp_path)])
    monkeypatch.setattr(init_against, "VIT_B", (32, 8, 96, 2, 3))
    monkeypatch.setattr(init_against, "VIT_T", (32, 8, 96, 2, 3))
    monkeypatch.setattr(init_against, "VIT_B_4", (32, 8, 96, 2, 3))
    layers = ((96, 1, 6), (96, 2, 6))
    monkeypatch.setattr(init_time, "CURVES", {"width": ((192, 1, 3), (384, 1, 6)), "layers": layers})
    init_time.main()
    record = json.loads((tmp_path / "init_time.json").read_text())
    (narrow,) = record["curve"]["width"]
    assert (narrow["width"], narrow["layers"], narrow["heads"]) == (192, 1, 3)
    assert set(narrow["times"]) == set(init_time.TIMED)
    assert all(time > 0 for times in narrow["times"].values() for time in times)
    assert [point["layers"] for point in record["curve"]["layers"]] == [1, 2]
    assert record["surroundings"]["threads"] == 1
    table = (tmp_path / "init_time.md").read_text()
    assert all(f"Against {paper}" in table for paper in ("2505.19985", "2404.01139", "2305.09828"))
    assert "| published, 3 steps |" in table
    assert "| **192** | 1 | 3 |" in table
    assert "| 96 | **2** | 6 |" in table
    assert table.strip() in capsys.readouterr().out
    assert (tmp_path / "init_time.png").stat().st_size > 1000
