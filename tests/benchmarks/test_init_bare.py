"""The benchmark beside a bare loop draws as many numbers on both sides, and its pieces add up to the whole."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmarks import init_bare
from structured_init.writer import Writer


def test_both_sides_set_the_same_tensors_within_the_same_bounds():
    model = nn.Sequential(nn.Linear(8, 300), nn.LayerNorm(300), nn.Linear(300, 2))
    sides = init_bare.sides(model)
    for name in ("bare loop", "initialize"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7.0)
        sides[name]()
        assert 0.3 < model[0].weight.abs().max() <= 1 / math.sqrt(8)
        assert 0.05 < model[2].weight.abs().max() <= 1 / math.sqrt(300)
        assert model[1].weight.eq(7).all()
    for work in sides.values():
        work()


def test_without_the_file_nothing_is_kept_and_afterwards_it_is_again():
    keep, inside = Writer._remember, []
    init_bare.unkept(lambda: inside.append(Writer._remember))
    assert inside[0] is not keep
    assert Writer._remember is keep


def test_the_table_has_ratios_to_the_bare_loop():
    processor = {"bare loop": [1.0, 2.0, 3.0], "initialize": [5.0]}
    times = {"processor": processor, "clock": {"bare loop": [4.0], "initialize": [6.0]}, "load": 0.5}
    assert init_bare.rows(times)[3] == "| initialize | 5 | 5 – 5 | 1 | 2.50 | 6 | 1.50 |"
    record = {"surroundings": {"threads": 1}, "ViT-S, 1 thread": times}
    assert "## ViT-S, 1 thread" in init_bare.table(record)
    assert "0.5 other processes were running" in init_bare.table(record)
    assert "ViT-L" not in init_bare.table(record)
