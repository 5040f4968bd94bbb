"""Impulse where heads share keys: on a timm model that has them, and what it costs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init import (
    attention_sites,
    initialize,
)
from structured_init.analysis import capture_attention
from structured_init.impulse import AdamSolver, Impulse
from structured_init.impulse.solver import impulse_maps, layer_norm
from structured_init.util.draws import Draws

HEADS = 4
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def eva():
    """A factory of timm's EVA with absolute positions, without RoPE: 8×8 tokens, width 64, 4 heads of 16, 2 keys."""
    from timm.models.eva import Eva

    def build(keys):
        arguments = {"img_size": 16, "patch_size": 2, "embed_dim": 64, "depth": 2, "num_heads": HEADS, "num_classes": 5}
        arguments |= {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": keys, "class_token": False}
        torch.manual_seed(0)
        return Eva(**arguments).eval()

    return build


def masses(model, offsets):
    """Each head's mass on its impulse where attention sees positions alone, by a loop over heads."""
    site = attention_sites(model)[0]
    tokens = layer_norm(model.pos_embed[0].detach().double())
    group, found = site.num_heads // site.num_key_value_heads, []
    for head, impulse in enumerate(impulse_maps(offsets, site.grid, border="zero")):
        query, key = tokens @ site.query[head].double(), tokens @ site.key[head // group].double()
        attention = (site.scale * query @ key.mT).softmax(-1)
        found.append((attention * impulse).sum(1)[impulse.sum(1) > 0].mean())
    return torch.stack(found)


# One key for all heads is as good as one for each: of 16 dimensions, shifts on 8 × 8 tokens need 14 at most.
@pytest.mark.parametrize("solver", ["svd", "separable"])
def test_the_first_layers_maps_on_images_are_those_without_grouping(eva, solver):
    """Through the host's own forward, which says itself which head takes which key."""
    maps = []
    for keys in (1, 2, HEADS):
        model = eva(keys)
        model.load_state_dict(  # the patch embedding of one model for all
            {name: tensor for name, tensor in eva(1).state_dict().items() if "patch_embed" in name}, strict=False
        )
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        initialize(model, Impulse(solver=solver), seed=1)
        maps.append(capture_attention(model, IMAGES, layers=["blocks.0.attn"])["blocks.0.attn"])
    torch.testing.assert_close(maps[0], maps[2], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(maps[1], maps[2], rtol=1e-3, atol=1e-5)


def test_adam_optimizes_the_key_that_heads_share(eva):
    """Two heads on one key: each has more mass on its own impulse than at the start, where it is 1/64 everywhere."""
    start = Impulse(solver=AdamSolver(iterations=1500), offsets="fixed")
    model = eva(2)
    notes = initialize(model, start).notes
    assert "2 heads share each key: their maps' mean squared error is 0.01" in notes["blocks.0.attn"]
    offsets = start.head_offsets(attention_sites(model)[0], Draws(0))
    assert masses(model, offsets).min() > 3 / 64
    assert (masses(model, offsets) > 1.4 * masses(model, offsets.flip(0))).all()
