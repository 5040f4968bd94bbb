"""A snapshot tells what has moved since somebody accepted it, and nothing of another seed."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch
from torch import nn

from structured_init import StructuredInitError
from structured_init.testing import CHECKS, assert_initialized, check_initialized

OTHERS = [name for name in CHECKS if name != "snapshot"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.gate = nn.LayerNorm(32), nn.Linear(32, 64), nn.Parameter(torch.full((32,), 1e-5))


class Net(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        for depth, block in enumerate(self.blocks):
            nn.init.normal_(block.up.weight, std=0.02 * 2**depth)
        self.register_buffer("angles", torch.outer(torch.arange(16.0), 100 ** -torch.linspace(0, 1, 8)))
        self.register_buffer("mask", torch.ones(5, 5).tril().bool())
        self.turn = nn.Parameter(nn.init.orthogonal_(torch.empty(16, 16)))
        if change is not None:
            with torch.no_grad():
                change(self)


def moved(file, change, **options):
    return check_initialized(partial(Net, change), snapshot=file, skip=OTHERS, **options).failures


@pytest.fixture
def file(tmp_path):
    check_initialized(Net, snapshot=tmp_path / "init.json", skip=OTHERS)
    return tmp_path / "init.json"


@pytest.mark.parametrize("seed", range(1, 9))
def test_another_seed_moves_nothing(file, seed):
    assert moved(file, None, seed=seed) == []


def test_a_file_is_sorted_has_a_line_for_each_kind_of_tensor_and_is_the_same_when_it_is_written_again(file):
    before = file.read_text()
    entries = json.loads(before)
    assert list(entries) == sorted(entries)
    assert len(before.splitlines()) == len(entries) + 2
    assert entries["blocks.#.norm.weight"]["blocks"] == 4
    scales = [entries[f"blocks.{block}.up.weight"]["rms"] for block in range(4)]
    assert scales == pytest.approx([0.02, 0.04, 0.08, 0.16], rel=0.1)
    assert entries["embed.weight"]["tied"] == "head.weight"
    assert_initialized(Net, snapshot=file, update_snapshot=True, skip=OTHERS)
    assert file.read_text() == before


def untied(net):
    net.head.weight = nn.Parameter(net.embed.weight.clone())


def uniform(net):
    for block in net.blocks:
        std = block.up.weight.std().item()
        nn.init.uniform_(block.up.weight, -math.sqrt(3) * std, math.sqrt(3) * std)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net: net.blocks[2].up.weight.mul_(2), "blocks.2.up.weight: root mean square 0.16"),
        (lambda net: [block.gate.fill_(1e-4) for block in net.blocks], "blocks.0.gate: mean 0.0001; the snapshot has"),
        (lambda net: net.blocks[1].norm.weight.zero_(), "blocks.1.norm.weight: mean 0.0; the snapshot has 1.0"),
        (lambda net: net.angles.mul_(1.1), "angles: mean"),
        (lambda net: net.angles.copy_(net.angles.flip(0)), "angles: table"),
        (lambda net: net.mask.copy_(net.mask.T.clone()), "mask: table"),
        (lambda net: net.head.requires_grad_(False), "embed.weight: frozen is True; the snapshot has as usual"),
        (lambda net: net.embed.bfloat16(), "embed.weight: dtype is bfloat16"),
        (lambda net: nn.init.normal_(net.turn, std=0.25), "turn: kind is drawn; the snapshot has orthogonal"),
        (lambda net: net.blocks.append(Block()), "blocks.4.gate: is new"),
        (lambda net: net.register_buffer("more", torch.zeros(3)), "more: is new"),
        (lambda net: net.blocks.__delitem__(3), "blocks.#.gate: is there 3 times; the snapshot has 4"),
        (lambda net: delattr(net, "mask"), "mask: is there 0 times; the snapshot has 1"),
        (untied, "embed.weight: tied is as usual; the snapshot has head.weight"),
        (uniform, "blocks.0.up.weight: kurtosis 1."),
    ],
)
def test_what_has_moved_is_named(file, change, said):
    lines = moved(file, change, seed=3)
    assert any(line.startswith(f"snapshot: {said}") for line in lines), lines


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_parameter_without_numbers_moves_nothing(tmp_path):
    for _ in range(2):
        found = check_initialized(lambda: nn.Linear(0, 5), snapshot=tmp_path / "init.json", skip=OTHERS)
    assert found.failures == []
    assert not found.left_out


def test_a_file_that_is_no_snapshot_is_refused_in_one_line(file):
    for text in ("[1]", "{"):
        file.write_text(text)
        with pytest.raises(StructuredInitError, match=r"init\.json is no snapshot, .*: remove it"):
            moved(file, None)


def test_a_missing_file_is_refused_in_continuous_integration_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(StructuredInitError, match=r"there is no snapshot '.*init.json': write it on your machine"):
        moved(tmp_path / "init.json", None)
    assert moved(tmp_path / "init.json", None, update_snapshot=True) == []
    assert moved(tmp_path / "init.json", None) == []
