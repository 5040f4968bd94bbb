"""Shared weights and numbers computed from weights: the report says what one write means for the others."""

from __future__ import annotations

import pytest
import torch
from timm.layers import Attention
from torch import nn

from structured_init import (
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
