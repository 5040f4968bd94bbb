"""Attention without a telling name is found beside layers that are known, where somebody can be asked for a batch."""

from __future__ import annotations

import timm
import torch
from strangers import DIM, HEADS, WIDTH, Apart
from torch import nn

from structured_init import Mimetic, StructuredInitError, Weights, attention_sites, initialize


def mixed(*extra):
    torch.manual_seed(0)
    known = [timm.models.vision_transformer.Block(WIDTH, HEADS) for _ in range(2)]
    return nn.Sequential(known[0], *extra, known[1])


def batch_counted(calls):
    calls.append(1)
    return torch.randn(2, 7, WIDTH)


def test_two_known_layers_and_two_of_a_class_of_ones_own_are_four():
    model, calls = mixed(Apart(), Apart()), []
    sites = attention_sites(Weights(model, batch=lambda: batch_counted(calls)))
    assert [(site.name, site.how) for site in sites] == [
        ("0.attn", "written"),
        ("1", "watched"),
        ("2", "watched"),
        ("3.attn", "written"),
    ]
    torch.testing.assert_close(sites[1].value, model[1].carry.weight.view(HEADS, DIM, WIDTH).mT)
    assert calls == [1]


def test_nobody_is_asked_where_all_linear_maps_are_explained():
    calls = []
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    sites = attention_sites(Weights(mixed(nn.LayerNorm(WIDTH), head), batch=lambda: batch_counted(calls)))
    assert [site.name for site in sites] == ["0.attn", "3.attn"]
    assert calls == []


def nobody():
    raise StructuredInitError("probe_inputs is missing")


def test_an_mlp_outside_of_a_list_of_blocks_may_not_attend():
    model = nn.Module()
    model.att = nn.MultiheadAttention(WIDTH, 2)
    model.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
    assert initialize(model, Mimetic(positions="keep")).warnings == []


def test_without_a_batch_what_may_attend_beside_a_known_class_is_warned_of():
    report = initialize(mixed(Apart()), Mimetic(positions="keep"))
    [warning] = report.warnings
    assert warning.startswith("1 may attend too, which only a forward pass can tell: give `batch=…`")
    [other] = initialize(mixed(Apart()), Mimetic(positions="keep"), batch=nobody).warnings
    assert other.endswith("only a forward pass can tell: probe_inputs is missing")
    assert initialize(mixed(), Mimetic(positions="keep")).warnings == []
    assert initialize(mixed(Apart()), Mimetic(positions="keep"), batch=torch.randn(2, 7, WIDTH)).warnings == []
