"""One bug in a small network of four blocks: the check that finds it names it, and the network itself passes."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

from structured_init.analysis import audit
from structured_init.testing import assert_initialized, check_initialized

X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = self.norm(x)
        attention = (self.query(x) @ self.key(x).mT).softmax(-1)
        return self.down(self.up(attention @ x).relu())


class Net(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))
        with torch.no_grad():
            if change is not None:
                change(self)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def scaled(factor):
    return lambda net: net.blocks[2].up.weight.mul_(factor)


def one_module(net):
    net.blocks[3] = net.blocks[2] = net.blocks[1]


def one_part(net):
    net.blocks[2].up = net.blocks[0].up


def two_parameters_of_one_memory(net):
    net.blocks[1].up.weight = nn.Parameter(net.blocks[0].up.weight.detach())


def equal_heads(net):
    net.blocks[1].query.weight[16:] = net.blocks[1].query.weight[:16].clone()


def buffer(value):
    return lambda net: net.register_buffer("more", value())


PLANTED = [
    ("odd: blocks.2.up.weight: root mean square 0; in the other 3", scaled(0)),
    ("odd: blocks.2.up.weight: root mean square 0.2", scaled(2.5)),
    ("odd: blocks.1.norm.weight: root mean square 0; in the other 3", lambda net: net.blocks[1].norm.weight.zero_()),
    ("norms: blocks.0.norm.weight: begins at 2; norms begin at 1, or at 0 where a model adds 1 (and 3 more like it)",
     lambda net: [block.norm.weight.fill_(2) for block in net.blocks]),
    ("norms: blocks.3.norm.bias: begins at 1; biases of norms begin at 0",
     lambda net: net.blocks[3].norm.bias.fill_(1)),
    ("odd: blocks.3.norm.bias: root mean square 1; ", lambda net: net.blocks[3].norm.bias.fill_(1)),
    ("scale: blocks.1.up.bias: σ ",
     lambda net: net.blocks[1].up.bias.normal_(std=0.5)),
    ("copies: blocks.1.query.weight: 16 of 32 rows repeat another", equal_heads),
    ("copies: blocks.1.query.weight = blocks.1.key.weight: equal, copied or drawn from the same seed",
     lambda net: net.blocks[1].key.load_state_dict(net.blocks[1].query.state_dict())),
    ("coarse: blocks.1.up.weight: is float32, and all its numbers are those of bfloat16",
     lambda net: net.blocks[1].up.weight.copy_(net.blocks[1].up.weight.bfloat16())),
    ("shared: blocks.1–3.norm.weight, blocks.1–3.norm.bias, blocks.1–3.up.weight, blocks.1–3.up.bias and 6 more: one",
     one_module),
    ("shared: blocks.(0, 2).up.weight, blocks.(0, 2).up.bias: one parameter for several blocks", one_part),
    ("copies: blocks.0–1.up.weight: equal, copied", two_parameters_of_one_memory),
    ("unused: more.weight, more.bias: no output depends on it", lambda net: net.add_module("more", nn.Linear(8, 8))),
    ("frozen: blocks.1.up.weight: is drawn, and is not", lambda net: net.blocks[1].up.weight.requires_grad_(False)),
    ("seeds: building the model leaves the generator of torch in one state", lambda net: torch.manual_seed(1)),
    ("seeds: building the model leaves the generator of NumPy in one state", lambda net: np.random.seed(1)),
    ("memory: more: 4 of 4 numbers were never written", buffer(lambda: torch.empty(4, dtype=torch.int32))),
    ("memory: more: 4 of 4 numbers were never written", buffer(lambda: torch.empty(4, dtype=torch.bool))),
    ("memory: more: 4 of 4 numbers were never written", buffer(lambda: torch.empty(4, dtype=torch.complex64))),
    ("memory: more: 1 of 2 numbers are NaN", buffer(lambda: torch.tensor([1.0, float("nan")]))),
    ("memory: blocks.0.up.bias: never initialized, 64 of 64 numbers are not finite",
     lambda net: net.blocks[0].up.bias.fill_(float("inf"))),
]  # fmt: skip


@pytest.mark.parametrize(("said", "change"), PLANTED)
def test_a_planted_bug_is_found_and_named(said, change):
    lines = check_initialized(lambda: Net(change), X).failures
    assert any(line.startswith(said) for line in lines), lines


@pytest.mark.parametrize("seed", range(4))
def test_the_network_itself_passes_and_so_do_odd_but_healthy_tensors(seed):
    def odd(net):
        net.register_buffer("no", torch.full((4,), -float("inf")))
        net.register_buffer("largest", torch.tensor([torch.iinfo(torch.long).max]))
        net.register_buffer("sparse", torch.eye(3).to_sparse())
        net.dummy = nn.Parameter(torch.zeros(1))
        for depth, block in enumerate(net.blocks, 1):  # known trends
            block.down.weight.div_(depth**0.5)
            block.up.weight.div_(depth)

    assert assert_initialized(Net, X, seed=seed).failures == []
    assert assert_initialized(lambda: Net(odd), X, seed=seed).failures == []


def test_what_is_frozen_or_unused_on_purpose_is_named():
    def change(net):
        net.more = nn.Linear(8, 8)
        net.blocks[1].requires_grad_(False)

    assert assert_initialized(lambda: Net(change), X, frozen="blocks.1", unused=["more"]).failures == []


class Words(nn.Module):
    def __init__(self, rows=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 32, padding_idx=0), nn.Linear(32, 40)
        if rows is not None:
            self.embed.weight.data[:] = rows()

    def forward(self, tokens):
        return self.head(self.embed(tokens).cumsum(1))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, []),
        (lambda: torch.zeros(32), ["embeddings: embed.weight: all rows are equal"]),
        (lambda: torch.randn(40, 32), ["embeddings: embed.weight: the row of the padding token, 0, is not zero"]),
    ],
)
def test_what_is_asked_of_embeddings(rows, said):
    tokens = torch.randint(1, 40, (2, 7), generator=torch.Generator().manual_seed(0))
    found = check_initialized(lambda: Words(rows), tokens, skip="loss,stuck,unused").failures
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


def test_a_batch_may_be_an_object_such_as_a_graph():
    class Graph:
        def __init__(self, x, edges):
            self.x, self.edges = x, edges

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.left, self.head = nn.Linear(16, 32), nn.Linear(16, 32, False), nn.Linear(32, 5)

        def forward(self, graph):
            x = self.inner(graph.x)
            begin, end = graph.edges
            return self.head(x.index_add(0, end, x[begin]).relu())

    graph = Graph(torch.randn(6, 16), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]))
    assert check_initialized(Net, graph).failures == ["unused: left.weight: no output depends on it"]
    found = audit(Net(), graph)
    assert found.gradients.keys() == {"inner.weight", "inner.bias", "head.weight", "head.bias"}
    assert "left.weight: no gradient on this batch" in found.notes


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_a_seed_by_the_rank_of_any_launcher_is_found(name):
    before = torch.get_rng_state()

    def build():
        torch.manual_seed(torch.initial_seed() + int(os.environ.get(name, 0)))
        return nn.Linear(32, 32)

    (line,) = check_initialized(build, skip="stuck,loss").failures[:1]
    assert line.startswith("seed: weight: differs between two models of seed 0, the second on rank 1 of two")
    assert name not in os.environ
    assert torch.equal(torch.get_rng_state(), before)
