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


def views(net):
    memory = torch.randn(96, 32) / 6
    net.blocks[0].up.weight = nn.Parameter(memory[:64])
    net.blocks[1].up.weight = nn.Parameter(memory[32:])


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
    ("odd: blocks.3.up.weight: root mean square grows with depth, from 0.1",
     lambda net: [block.up.weight.mul_(2**place) for place, block in enumerate(net.blocks)]),
    ("scale: blocks.1.up.bias: σ ",
     lambda net: net.blocks[1].up.bias.normal_(std=0.5)),
    ("scale: blocks.0.up.weight, blocks.0.down.weight, blocks.0.query.weight",
     lambda net: [each.mul_(0.02) for each in net.parameters() if each.ndim == 2]),
    ("copies: blocks.1.query.weight: 16 of 32 rows repeat another", equal_heads),
    ("copies: blocks.1.query.weight = blocks.1.key.weight: equal, copied or drawn from the same seed",
     lambda net: net.blocks[1].key.load_state_dict(net.blocks[1].query.state_dict())),
    ("coarse: blocks.1.up.weight: is float32, and all its numbers are those of bfloat16",
     lambda net: net.blocks[1].up.weight.copy_(net.blocks[1].up.weight.bfloat16())),
    ("scale: blocks.1.up.weight: single numbers reach 2 from the mean, others 0.18",
     lambda net: net.blocks[1].up.weight[3, 3].fill_(2)),
    ("shared: blocks.1–3 are one: 6,368 numbers in place of 19,104", one_module),
    ("shared: blocks.(0, 2).up are one: 2,112 numbers in place of 4,224", one_part),
    ("shared: blocks.0.up.weight and blocks.1.up.weight share memory, and are two", views),
    ("shared: blocks.0.up.weight and blocks.1.up.weight share memory", two_parameters_of_one_memory),
    ("unused: more.weight, more.bias: no output depends on it", lambda net: net.add_module("more", nn.Linear(8, 8))),
    ("frozen: blocks.1.up.weight: is drawn, and is not", lambda net: net.blocks[1].up.weight.requires_grad_(False)),
    ("seeds: building the model leaves the generator of torch in one state", lambda net: torch.manual_seed(1)),
    ("seeds: building the model leaves the generator of NumPy in one state", lambda net: np.random.seed(1)),
    ("memory: more: 4 of 4 numbers were never written", buffer(lambda: torch.empty(4, dtype=torch.int32))),
    ("memory: more: 4 of 4 numbers were never written", buffer(lambda: torch.empty(4, dtype=torch.bool))),
    ("memory: more: 4 of 4 numbers were never written", buffer(lambda: torch.empty(4, dtype=torch.complex64))),
    ("memory: more: 1 of 2 numbers are not finite", buffer(lambda: torch.tensor([1.0, float("nan")]))),
    ("memory: blocks.0.up.bias: 64 of 64 numbers are not finite",
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
    """Words in, the next out; in transformers' ``...ForCausalLM`` the past does not see the future."""

    def __init__(self, rows=None, leak=False):
        super().__init__()
        self.embed, self.head, self.leak = nn.Embedding(40, 32, padding_idx=0), nn.Linear(32, 40), leak
        if rows is not None:
            self.embed.weight.data[:] = rows

    def forward(self, tokens):
        x = self.embed(tokens)
        mean = x.cumsum(1) + self.leak * x.sum(1, keepdim=True)
        return self.head(mean)


class WordsForCausalLM(Words):
    pass


class SaidToBeCausal(Words):
    is_causal = True


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (WordsForCausalLM, []),
        (lambda: Words(leak=True), []),
        (lambda: WordsForCausalLM(leak=True), ["causal: the last token changes what comes before it, by "]),
        (lambda: SaidToBeCausal(leak=True), ["causal: the last token changes what comes before it, by "]),
        (
            lambda: Words(torch.zeros(32)),
            ["embeddings: embed.weight: all rows are equal", "blind: two different samples"],
        ),
        (
            lambda: Words(torch.randn(40, 32)),
            ["embeddings: embed.weight: the row of the padding token, 0, is not zero"],
        ),
    ],
)
def test_what_is_asked_of_a_language_model(build, said):
    tokens = torch.randint(1, 40, (2, 7), generator=torch.Generator().manual_seed(0))
    found = check_initialized(build, tokens, skip="loss,stuck,unused").failures
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


class Reader(nn.Module):
    """Looks at all words alike, but at those that the mask leaves out, and adds a table of positions."""

    def __init__(self, masked=True, positions=0.02, added=True, mask="attention_mask"):
        super().__init__()
        self.embed, self.head, self.masked, self.added = nn.Embedding(40, 32), nn.Linear(32, 40), masked, added
        self.position_embeddings = nn.Parameter(positions * torch.randn(8, 32)) if positions is not None else None
        signatures = {
            "attention_mask": lambda tokens, attention_mask=None: self.read(tokens, attention_mask),
            "key_padding_mask": lambda tokens, key_padding_mask: self.read(tokens, ~key_padding_mask),
        }
        self.forward = signatures[mask]

    def read(self, tokens, mask):
        x = self.embed(tokens)
        if self.position_embeddings is not None and self.added:
            x = x + self.position_embeddings[: tokens.shape[1]]
        kept = torch.ones(tokens.shape) if mask is None or not self.masked else mask.float()
        return self.head((x + (kept[..., None] * x).mean(1, keepdim=True)).tanh())


BATCHES = {"attention_mask": (), "key_padding_mask": (torch.zeros(2, 8, dtype=torch.bool),)}


@pytest.mark.parametrize("mask", BATCHES)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""),
        ({"masked": False}, "padding: tokens at which {} is {} change the others, by "),
        ({"positions": 0.0}, "order: position_embeddings: a token gives the same output wherever it stands"),
        ({"positions": None}, ""),  # a set of words
        ({"added": False}, "order: position_embeddings: a token gives the same output wherever it stands"),
    ],
)
def test_padding_changes_no_other_token_and_positions_change_what_one_token_gives(mask, options, said):
    batch = (torch.randint(0, 40, (2, 8), generator=torch.Generator().manual_seed(0)), *BATCHES[mask])
    found = check_initialized(lambda: Reader(mask=mask, **options), batch, skip="loss").failures
    assert len(found) == bool(said)
    assert all(line.startswith(said.format(mask, int(mask != "attention_mask"))) for line in found)


def test_a_question_that_the_model_cannot_take_is_left_out():
    net = Reader()
    read = net.forward

    def forward(tokens, attention_mask=None):
        if (tokens == tokens[:, :1]).all():
            raise ValueError("one token alone")
        return read(tokens, attention_mask and attention_mask[:, 0, 0])  # a mask of pairs of tokens

    net.forward = forward
    checked = check_initialized(net, torch.arange(16).view(2, 8), skip="loss")
    assert not checked.failures
    said = [line.partition(" left out: the model fails on what it is asked: ") for line in checked.left_out]
    assert {name.strip(): why for name, _, why in said if why} == {
        "padding": "Boolean value of Tensor with more than one value is ambiguous",
        "order": "one token alone",
    }


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
