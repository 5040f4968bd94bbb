"""Attention sites: what the four matrices say is what the host's module does."""

from __future__ import annotations

import pytest
import torch
from timm.layers import Attention, LayerScale
from torch import nn

from structured_init import (
    AttentionLayout,
    Mimetic,
    Projection,
    StructuredInitError,
    TokenLayout,
    attention_sites,
    initialize,
    register_attention,
    register_positions,
)
from structured_init.hosts.attention_site import branch_scale
from structured_init.weights import Weights


class UserAttention(nn.Module):
    """Somebody's own attention: unfused, one bias, its own names."""

    def __init__(self, dim=12, heads=3, head_dim=2):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_v = nn.Linear(dim, heads * head_dim, bias=True)
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        weights = (q @ k.transpose(-1, -2) * self.head_dim**-0.5).softmax(-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class SpecialAttention(UserAttention):
    """A subclass, to be found over the method resolution order."""


def describe(module):
    return AttentionLayout(
        query=Projection(module.to_q.weight, module.heads, module.head_dim),
        key=Projection(module.to_k.weight, module.heads, module.head_dim),
        value=Projection(module.to_v.weight, module.heads, module.head_dim),
        output=Projection(module.to_out.weight, module.heads, module.head_dim, axis=1),
    )


def test_reading_gives_a_copy(tiny_vit):
    model = tiny_vit()
    before = model.blocks[0].attn.qkv.weight.detach().clone()
    attention_sites(model)[0].query.zero_()
    assert torch.equal(model.blocks[0].attn.qkv.weight, before)


def test_the_innermost_known_model_says_what_the_tokens_are(tiny_vit):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = tiny_vit(depth=1)
            self.head = nn.ModuleDict({"attn": Attention(16, num_heads=2)})

    register_positions(Outer)(lambda module: TokenLayout(grid=None, prefix_tokens=7))
    found = {site.name: (site.grid, site.prefix_tokens) for site in attention_sites(nn.Sequential(Outer()))}
    assert found == {"0.tower.blocks.0.attn": ((4, 4), 1), "0.head.attn": (None, 7)}


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        (None, range(11)),
        ("blocks.1.attn", [1]),
        ("blocks.[0-2].*", [0, 1, 2]),
        (["blocks.0.*", "3.attn"], [0, 3]),
        ("ocks.1.attn", []),
        ("blocks", range(11)),  # a module around layers
        ("blocks.1", [1]),
        ("1", [1]),
        ("blocks.1*", [1, 10]),
        (["blocks.2", "3.attn"], [2, 3]),
        ("locks.1", []),
        (lambda site: site.name.split(".")[2] in "23", [2, 3]),
    ],
)
def test_where_selects_layers_by_pattern_of_them_or_of_a_module_around_or_by_predicate(tiny_vit, where, chosen):
    model = nn.ModuleDict({"vit": tiny_vit(depth=11)})
    assert [site.name for site in attention_sites(model, where)] == [f"vit.blocks.{i}.attn" for i in chosen]


def test_a_users_class_works_after_ten_lines():
    register_attention(UserAttention, grid=(2, 3), prefix_tokens=1)(describe)
    torch.manual_seed(0)
    model = nn.Sequential(UserAttention(), SpecialAttention()).double()
    report = initialize(model, Mimetic())
    sites = attention_sites(model)
    assert [(site.name, site.grid, site.prefix_tokens) for site in sites] == [("0", (2, 3), 1), ("1", (2, 3), 1)]
    assert report.skipped == {
        "positions": "no table of positions was found; given a batch, as batch=…, one forward pass "
        "finds a learned table"
    }
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    for site, module in zip(sites, model, strict=True):
        total = 0.0
        for head in range(3):
            logits = x @ site.query[head] @ site.key[head].mT @ x.mT / 2**0.5
            value = x @ site.value[head] + module.to_v.bias[2 * head : 2 * head + 2]
            total = total + logits.softmax(-1) @ value @ site.output[head]
        torch.testing.assert_close(total, module(x))


@pytest.mark.parametrize(
    ("name", "bare"),
    [("layer_scale", False), ("ls_attn", False), ("ls1", True), ("layer_scale_1", True), ("attn.gamma", True)],
)
def test_a_layer_scale_of_attention_is_told_by_its_class_or_name(name, bare):
    block = nn.ModuleDict({"attn": Attention(12, num_heads=2), "ls_mlp": LayerScale(12, 1e-6)})
    block.gamma = nn.Parameter(torch.full((12,), 1e-6))  # may be the MLP's: attention's is not told by it
    weights = Weights(block)
    assert branch_scale(weights, "attn") is None
    scale = nn.Parameter(torch.full((12,), 1e-5)) if bare else LayerScale(12, 1e-5)
    setattr(block.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], scale)
    assert branch_scale(weights, "attn") == pytest.approx(1e-5)


def test_the_nearest_class_describes_a_module():
    register_attention(UserAttention, grid=(1, 1))(describe)
    register_attention(SpecialAttention, grid=(2, 2))(describe)
    sites = attention_sites(nn.Sequential(UserAttention(), SpecialAttention()))
    assert [site.grid for site in sites] == [(1, 1), (2, 2)]


def test_the_example_in_the_documentation_runs():
    lines = [line.strip(" ") for line in register_attention.__doc__.split("Example:")[1].splitlines()]
    code = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    known = {"register_attention": register_attention, "AttentionLayout": AttentionLayout, "Projection": Projection}
    exec(code, {**known, "MyAttention": UserAttention})
    module = UserAttention()
    module.num_heads = module.heads
    (site,) = attention_sites(nn.Sequential(module))
    assert site.grid == (8, 8)
    assert torch.equal(site.output[1], module.to_out.weight[:, 2:4].T)


def test_an_unknown_attention_class_is_named_with_the_way_out():
    with pytest.raises(StructuredInitError) as caught:
        initialize(nn.Sequential(UserAttention()), Mimetic())
    message = str(caught.value)
    assert "UserAttention is not known: give `batch=…`, one or two samples, so that it is found by watching" in message
    assert message.endswith("describe it with structured_init.register_attention")
    assert "\n" not in message


def test_a_pattern_that_selects_nothing_is_named_and_layers_that_are_left_out_are_not(tiny_vit):
    report = initialize(tiny_vit(), Mimetic(where=["blocks.0.attn", "blocks.9.attn"]))
    assert report.warnings == ["Mimetic: where: 'blocks.9.attn' selects no attention layer"]
    assert initialize(tiny_vit(), Mimetic(where="blocks.0.attn")).warnings == []
