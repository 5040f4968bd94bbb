"""Shared weights and numbers computed from weights: the report says what one write means for the others."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
import transformers
from timm.layers import Attention
from torch import nn

from structured_init import (
    KaimingUniform,
    Mimetic,
    PreviousToken,
    initialize,
)
from structured_init.analysis import audit


def test_projections_shared_by_two_layers_are_noted():
    layers = nn.ModuleList([Attention(8, num_heads=2), Attention(8, num_heads=2)])
    layers[1].qkv.weight = layers[0].qkv.weight
    report = initialize(layers, Mimetic(positions="keep"))
    assert report.notes["0.qkv.weight"] == "shared with 1.qkv.weight: one tensor, so what is set holds for all"
    assert "0.proj.weight" not in report.notes
    assert "note 0.qkv.weight: shared with 1.qkv.weight" in report.table()


class Shared(nn.Module):
    """One block that stands three times in its list, and a head that is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(11, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)] * 3)
        self.head = nn.Linear(32, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        hidden = self.embed(ids) + self.pos_embed(torch.arange(ids.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


@pytest.mark.parametrize(
    "look", [audit, lambda model, ids: initialize(model, PreviousToken(context=16), batch=ids, dry_run=True)]
)
def test_a_module_that_is_registered_several_times_keeps_its_own_parameters(look):
    model, ids = Shared(), torch.arange(32).view(2, 16) % 11
    before = [(name, each, each.detach().clone()) for name, each in model.named_parameters()]
    look(model, ids)
    now = dict(model.named_parameters())
    assert [*now] == [name for name, *_ in before]
    assert all(now[name] is each and each.equal(value) for name, each, value in before)


def test_gradients_of_a_tied_head_and_of_a_block_that_runs_three_times_are_those_of_autograd():
    model, ids = Shared().eval(), torch.arange(32).view(2, 16) % 11
    found = audit(model, ids, seed=3).gradients
    output = model(ids)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    ((output * direction).sum() / output.numel() ** 0.5).backward()
    assert found == pytest.approx({n: p.grad.square().mean().sqrt().item() for n, p in model.named_parameters()}, 1e-4)


def test_an_embedding_tied_to_the_head_is_noted_only_where_it_is_set():
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=8)
    assert "shared with" not in str(initialize(transformers.GPT2LMHeadModel(config), Mimetic(positions="keep")).notes)
    report = initialize(transformers.GPT2LMHeadModel(config), KaimingUniform())
    assert report.notes["transformer.wte.weight"].startswith("shared with lm_head.weight")


class Distilled(nn.Module):
    """A student and the teacher that follows it, as in DINO, BYOL and data2vec."""

    def __init__(self):
        super().__init__()
        self.student = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=0)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, images):
        return self.student(images), self.teacher(images)


def test_positions_of_another_tower_are_left_alone_under_where():
    report = initialize(Distilled(), Mimetic(where="student"))
    assert [each.names[0] for each in report.changed if "pos_embed" in each.names[0]] == ["student.pos_embed"]
    assert report.skipped["teacher.pos_embed"] == "not the positions of what where='student' selects"
