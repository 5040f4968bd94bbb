"""A registered layout that its module contradicts is refused in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from structured_init import (
    AttentionLayout,
    Mimetic,
    Projection,
    StridedProjection,
    StructuredInitError,
    attention_sites,
    check_attention,
    initialize,
    register_attention,
)


class MyAttention(nn.Module):
    """Width 8, two heads: every matrix is square, so that no shape tells its axes."""

    def __init__(self, linear=lambda: nn.Linear(8, 8, bias=False)):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (linear() for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v))
        return self.to_out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def layout(module, axes=(0, 0, 0, 1), **changes):
    layers = (module.to_q, module.to_k, module.to_v, module.to_out)
    parts = [Projection(layer.weight, 2, 4, axis=axis) for layer, axis in zip(layers, axes, strict=True)]
    return replace(AttentionLayout(*parts), **changes)


register = register_attention(MyAttention)


def test_the_readmes_recipe_without_its_axis_is_refused():
    register(lambda module: layout(module, axes=(0, 0, 0, 0)))
    with pytest.raises(StructuredInitError, match=r"output is 'to_out', .* heads lie along axis 1, not 0: axis=1$"):
        initialize(nn.Sequential(MyAttention()), Mimetic(positions="keep"))


def test_a_transposed_layer_has_its_axes_the_other_way_round():
    register(lambda module: layout(module, axes=(1, 1, 1, 0)))
    assert len(attention_sites(nn.Sequential(MyAttention(lambda: Conv1D(8, 8))))) == 1
    with pytest.raises(StructuredInitError, match=r"'to_q', whose weight is \(out, in\)"):
        attention_sites(nn.Sequential(MyAttention()))
    register(layout)
    with pytest.raises(StructuredInitError, match=r"'to_q', whose weight is \(in, out\), .* axis 1, not 0"):
        attention_sites(nn.Sequential(MyAttention(lambda: Conv1D(8, 8))))


WRONG = {
    "a block outside of its parameter": (
        lambda m: layout(m, key=Projection(m.to_k.weight, 2, 4, start=4)),
        r"key takes entries 4 to 12 of axis 0, of a weight of shape \(8, 8\)$",
    ),
    "a bias": (
        lambda m: layout(m, value=Projection(nn.Parameter(torch.ones(8)), 2, 4)),
        r"value needs a two-dimensional weight and axis 0 or 1, got shape \(8,\) and axis 0$",
    ),
    "keys of another width": (
        lambda m: layout(m, key=Projection(m.to_k.weight, 4, 2)),
        "query has 2 heads of width 4, which key's 4 heads of width 2 cannot serve$",
    ),
    "nothing": (lambda m: None, "registered for MyAttention returned None: it must return an AttentionLayout$"),
    "a layer": (
        lambda m: layout(m, query=Projection(m.to_q, 2, 4)),
        "^the layout of MyAttention: query is a Linear, not its weight: give module.….weight$",
    ),
    "no heads": (
        lambda m: layout(m, key=Projection(m.to_k.weight, 0, 4)),
        "^the layout of MyAttention: key needs heads to be a whole number from 1, got 0$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused_in_one_line(as_installed, name):
    describe, said = WRONG[name]
    register(describe)
    with pytest.raises(StructuredInitError, match=said) as caught:
        attention_sites(nn.Sequential(MyAttention()))
    assert "\n" not in str(caught.value)


class EinsumAttention(nn.Module):
    """Queries, keys and values in one parameter of four axes, (3, heads, D, head_dim)."""

    def __init__(self, dim=12, heads=2, head_dim=4):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.qkv = nn.Parameter(torch.randn(3, heads, dim, head_dim, generator=generator) * dim**-0.5)
        self.mix = nn.Parameter(torch.randn(heads, head_dim, dim, generator=generator) * dim**-0.5)

    def forward(self, x):
        q, k, v = torch.einsum("bnd,shdk->sbhnk", x, self.qkv)
        maps = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return x + torch.einsum("bhnm,bhmk,hkd->bnd", maps, v, self.mix)


def strided(module, order=(0, 1, 2), steps=(1, 4)):
    """Its layout, by the definition of the four axes."""
    heads, dim, head_dim = module.qkv.shape[1:]
    parts = [
        StridedProjection(
            module.qkv, tuple((n * heads + h) * dim * head_dim for h in range(heads)), head_dim, dim, steps
        )
        for n in order
    ]
    starts = tuple(h * head_dim * dim for h in range(heads))
    return AttentionLayout(*parts, output=StridedProjection(module.mix, starts, head_dim, dim, (dim, 1)))


def test_a_parameter_of_four_axes_is_described_and_checked():
    register_attention(EinsumAttention)(strided)
    model = nn.Sequential(EinsumAttention(), EinsumAttention())
    site = attention_sites(model)[0]
    assert torch.equal(site.value, model[0].qkv[2])
    assert torch.equal(site.output, model[0].mix)
    errors = check_attention(model, torch.randn(2, 5, 12))
    assert max(max(each) for each in errors.values()) < 1e-5
    assert initialize(model, Mimetic(), batch=torch.randn(2, 5, 12)).notes == {}
    assert "not compared" in initialize(nn.Sequential(EinsumAttention()), Mimetic()).notes["0"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"order": (0, 1, 3)}, r"value takes entries 288 to 383 of a flattened weight of shape \(3, 2, 12, 4\)"),
        ({"steps": (1, 12)}, "value takes entries 192 to 375 of a flattened"),
        ({"steps": (-1, 4)}, "query needs starts and steps that are not negative"),
    ],
)
def test_entries_outside_of_a_parameter_are_refused(changes, said):
    register_attention(EinsumAttention)(lambda module: strided(module, **changes))
    with pytest.raises(StructuredInitError, match=f"the layout of EinsumAttention: {said}"):
        attention_sites(EinsumAttention())
