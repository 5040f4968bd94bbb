"""Impulse starts where heads share keys: on a timm model that has them, on a class of one's own, and what it costs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init import (
    AttentionLayout,
    Compose,
    Mimetic,
    Projection,
    attention_sites,
    initialize,
    register_attention,
)
from structured_init.analysis import capture_attention
from structured_init.attention.impulse import AdamSolver, Impulse, SeparableSolver, SvdSolver
from structured_init.attention.impulse.solver import impulse_maps, layer_norm
from structured_init.util.draws import Draws

HEADS = 4
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def eva():
    """A factory of timm's EVA with absolute positions, without RoPE: 8×8 tokens, width 64, 4 heads of 16, 2 keys."""
    from timm.models.eva import Eva

    def build(keys=2, **changes):
        arguments = {"img_size": 16, "patch_size": 2, "embed_dim": 64, "depth": 2, "num_heads": HEADS, "num_classes": 5}
        arguments |= {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": keys, "class_token": False}
        torch.manual_seed(0)
        return Eva(**{**arguments, **changes}).eval()

    return build


class GroupedAttention(nn.Module):
    """A user's own attention in which neighbouring heads share a key and a value."""

    def __init__(self, dim, heads, keys):
        super().__init__()
        self.heads, self.keys, self.head_dim = heads, keys, dim // heads
        self.to_q, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.to_k, self.to_v = (nn.Linear(dim, keys * self.head_dim) for _ in range(2))

    def forward(self, x, **kwargs):
        query, key, value = (
            linear(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for linear in (self.to_q, self.to_k, self.to_v)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


@register_attention(GroupedAttention)
def grouped_attention(module):
    return AttentionLayout(
        query=Projection(module.to_q.weight, module.heads, module.head_dim),
        key=Projection(module.to_k.weight, module.keys, module.head_dim),
        value=Projection(module.to_v.weight, module.keys, module.head_dim),
        output=Projection(module.out.weight, module.heads, module.head_dim, axis=1),
    )


@pytest.fixture
def own(tiny_vit):
    """A factory of small ViTs, 8×8 tokens, in which that attention stands in place of timm's."""

    def build(keys=2, **changes):
        arguments = {"img_size": 16, "embed_dim": 64, "class_token": False, "global_pool": "avg"}
        model = tiny_vit(**{**arguments, "num_heads": HEADS, **changes})
        torch.manual_seed(0)
        for block in model.blocks:
            block.attn = GroupedAttention(64, HEADS, keys)
        return model.eval()

    return build


@pytest.fixture(params=["eva", "own"])
def host(request):
    return request.getfixturevalue(request.param)


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
@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize(
    ("start", "least"),
    [(Impulse(), 0.05), (Impulse(5, solver="separable"), 0.9)],
    ids=["svd", "separable 5×5"],
)
def test_heads_that_share_a_key_put_the_mass_on_their_own_impulses_that_they_have_alone(host, keys, start, least):
    grouped, apart = host(keys), host(HEADS)
    initialize(grouped, start, seed=1)
    initialize(apart, start, seed=1)
    offsets = start.head_offsets(attention_sites(grouped)[0], Draws(1))
    found = masses(grouped, offsets)
    torch.testing.assert_close(found, masses(apart, offsets), rtol=1e-4, atol=1e-5)
    assert found.min() > least


@pytest.mark.parametrize("solver", ["svd", "separable"])
def test_the_first_layers_maps_on_images_are_those_without_grouping(host, solver):
    """Through the hosts' own forward, which say themselves which head takes which key."""
    maps = []
    for keys in (1, 2, HEADS):
        model = host(keys)
        model.load_state_dict(  # the patch embedding of one model for all
            {name: tensor for name, tensor in host(1).state_dict().items() if "patch_embed" in name}, strict=False
        )
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        initialize(model, Impulse(solver=solver), seed=1)
        maps.append(capture_attention(model, IMAGES, layers=["blocks.0.attn"])["blocks.0.attn"])
    torch.testing.assert_close(maps[0], maps[2], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(maps[1], maps[2], rtol=1e-3, atol=1e-5)


def test_adam_optimizes_the_key_that_heads_share(own):
    """Two heads on one key: each has more mass on its own impulse than at the start, where it is 1/64 everywhere."""
    start = Impulse(solver=AdamSolver(iterations=1500), offsets="fixed")
    model = own(2)
    notes = initialize(model, start).notes
    assert "2 heads share each key: their maps' mean squared error is 0.01" in notes["blocks.0.attn"]
    offsets = start.head_offsets(attention_sites(model)[0], Draws(0))
    assert masses(model, offsets).min() > 3 / 64
    assert (masses(model, offsets) > 1.4 * masses(model, offsets.flip(0))).all()


@pytest.mark.parametrize("solver", [AdamSolver(iterations=2), SvdSolver(), SeparableSolver()])
def test_a_grouped_start_is_reproducible_and_leaves_values_alone(host, solver):
    first, second = host(2), host(2)
    values = [site.value for site in attention_sites(first)]
    initialize(first, Impulse(solver=solver), seed=4)
    initialize(second, Compose([Impulse(solver=solver), Mimetic(query_key=False, positions="keep")]), seed=4)
    for site, other, value in zip(attention_sites(first), attention_sites(second), values, strict=True):
        assert torch.equal(site.query, other.query)
        assert torch.equal(site.key, other.key)
        assert torch.equal(site.value, value)
