"""Attention sites: what the four matrices say is what the host's module does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hosts import Does
from timm.layers import Attention, LayerScale
from torch import nn

from structured_init import (
    AttentionLayout,
    Compose,
    DeltaOrthogonal,
    Mimetic,
    MlpMean,
    Positions,
    Projection,
    SpatialFilters,
    StructuredInitError,
    TokenLayout,
    UniformProjections,
    attention_sites,
    initialize,
    register_attention,
    register_positions,
)
from structured_init.hosts import attention
from structured_init.hosts.attention import looks_like_attention, unknown_attention
from structured_init.hosts.attention_site import branch_scale
from structured_init.hosts.timm import fused
from structured_init.overlay import Weights
from structured_init.writer import Writer


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


def test_two_towers_keep_their_own_grids(tiny_vit):
    model = nn.ModuleDict({"eye": tiny_vit(), "other": tiny_vit(img_size=(4, 12), reg_tokens=1, depth=1)})
    found = {site.name: (site.grid, site.prefix_tokens) for site in attention_sites(model)}
    assert found == {
        "eye.blocks.0.attn": ((4, 4), 1),
        "eye.blocks.1.attn": ((4, 4), 1),
        "other.blocks.0.attn": ((2, 6), 2),
    }


def test_the_innermost_known_model_says_what_the_tokens_are(tiny_vit):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = tiny_vit(depth=1)
            self.head = nn.ModuleDict({"attn": Attention(16, num_heads=2)})

    register_positions(Outer)(lambda module: TokenLayout(grid=None, prefix_tokens=7))
    found = {site.name: (site.grid, site.prefix_tokens) for site in attention_sites(nn.Sequential(Outer()))}
    assert found == {"0.tower.blocks.0.attn": ((4, 4), 1), "0.head.attn": (None, 7)}


def test_prefix_tokens_alone_leave_the_grid_to_the_model_around(tiny_vit):
    model = tiny_vit()
    (before, *_) = attention_sites(model)
    register_attention(type(model.blocks[0].attn), prefix_tokens=5)(fused)
    (site, *_) = attention_sites(model)
    assert (site.grid, site.prefix_tokens) == (before.grid, 5)
    assert before.grid is not None


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        (None, "0123"),
        ("blocks.1.attn", "1"),
        ("blocks.[0-2].*", "012"),
        (["blocks.0.*", "blocks.3.attn"], "03"),
        ("1.attn", "1"),
        ("ocks.1.attn", ""),
        (lambda site: site.name.split(".")[2] in "23", "23"),
    ],
)
def test_where_selects_layers_by_pattern_or_predicate(tiny_vit, where, chosen):
    model = nn.ModuleDict({"vit": tiny_vit(depth=4)})
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


@pytest.fixture
def searches(monkeypatch):
    """The overlays that were searched for attention, one for each time."""
    searched, find = [], attention.find_attention
    monkeypatch.setattr(attention, "find_attention", lambda weights: searched.append(weights) or find(weights))
    return searched


@pytest.mark.parametrize("known", [True, False])
def test_a_model_is_searched_for_attention_once_in_an_initialization(known, searches, tiny_vit):
    model = tiny_vit() if known else nn.Sequential(nn.Linear(12, 12), UserAttention())
    batch = None if known else torch.randn(2, 7, 12)
    report = initialize(model, Compose([UniformProjections(), Mimetic(positions="keep")]), batch=batch)
    assert sum("Mimetic: query_key" in entry.set_by for entry in report.changed) > 0
    assert len(searches) == 1


def test_a_class_that_is_registered_later_is_found_and_a_scale_that_was_written_is_seen(searches):
    block = nn.Module()
    block.attn, block.gamma_1 = UserAttention(), nn.Parameter(torch.full((12,), 0.5))
    with Writer() as writer:
        weights = Weights(nn.Sequential(block), writer)
        assert not attention_sites(weights)
        register_attention(UserAttention)(describe)
        [site] = attention_sites(weights)
        weights.write(block.gamma_1, torch.full((12,), 0.25), "test")
        weights.flush()
        assert (site.branch_scale, attention_sites(weights)[0].branch_scale, len(searches)) == (0.25, 0.25, 2)


@pytest.mark.parametrize(
    ("name", "bare"),
    [("layer_scale", False), ("ls_attn", False), ("ls1", True), ("layer_scale_1", True), ("attn.gamma", True)],
)
def test_a_layer_scale_of_attention_is_told_by_its_class_or_name(name, bare):
    block = nn.ModuleDict({"attn": Attention(12, num_heads=2), "ls_mlp": LayerScale(12, 1e-6)})
    block.gamma = nn.Parameter(torch.full((12,), 1e-6))  # may be the MLP's: attention's is not told by it
    site = attention_sites(block)[0]
    assert site.branch_scale is None
    scale = nn.Parameter(torch.full((12,), 1e-5)) if bare else LayerScale(12, 1e-5)
    setattr(block.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], scale)
    assert site.branch_scale == pytest.approx(1e-5)


def test_of_several_layer_scales_that_of_the_own_branch_counts():
    block = nn.ModuleDict({"attn": Attention(12, num_heads=2), "ls_conv": LayerScale(12, 1e-5)})
    block["dw"] = nn.Conv2d(12, 12, 3, groups=12)
    site = attention_sites(block)[0]
    assert site.branch_scale is None
    block["ls_attn"], block["ls_conv"] = LayerScale(12, 0.5), block.pop("ls_conv")
    assert (site.branch_scale, branch_scale(Weights(block), "dw")) == (0.5, pytest.approx(1e-5))


def test_a_matrix_is_no_layer_scale_whatever_it_is_called():
    block = nn.ModuleDict({"dw": nn.Conv2d(12, 12, 3, groups=12), "gamma": nn.Linear(8, 12)})  # FiLM
    assert branch_scale(Weights(block), "dw") is None
    block["gamma"] = LayerScale(12, 1e-5)
    assert branch_scale(Weights(block), "dw") == pytest.approx(1e-5)


def test_a_mere_gamma_of_the_whole_model_is_no_layer_scale_of_its_blocks():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8)))
    model.gamma = nn.Parameter(torch.full((8,), 1e-6))
    assert branch_scale(Weights(model), "0.0") is None
    model[0].gamma = model.gamma
    assert branch_scale(Weights(model), "0.0") == pytest.approx(1e-6)


def test_a_class_can_be_named_by_its_path():
    register_attention(f"{UserAttention.__module__}.{UserAttention.__qualname__}")(describe)
    assert [site.name for site in attention_sites(nn.Sequential(SpecialAttention()))] == ["0"]


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


def test_a_convolutional_net_is_refused_with_what_it_has():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(StructuredInitError) as caught:
        initialize(model, Mimetic())
    assert str(caught.value) == (
        "Mimetic found no attention layer that it recognizes; the model has BatchNorm2d, Conv2d, Linear: "
        "give `batch=…`, "
        "one or two samples, so that it is found by watching, or describe it with structured_init.register_attention"
    )


def test_an_unknown_attention_class_is_named_with_the_way_out():
    with pytest.raises(StructuredInitError) as caught:
        initialize(nn.Sequential(UserAttention()), Mimetic())
    message = str(caught.value)
    assert "UserAttention is not known: give `batch=…`, one or two samples, so that it is found by watching" in message
    assert message.endswith("describe it with structured_init.register_attention")
    assert "\n" not in message


def test_where_that_selects_nothing_lists_the_layers(tiny_vit):
    with pytest.raises(StructuredInitError) as caught:
        initialize(tiny_vit(), Mimetic(where="layers.*"))
    message = str(caught.value)
    assert "where='layers.*' selects none of the 2 attention layers (blocks.0.attn, blocks.1.attn" in message


def test_a_pattern_that_selects_nothing_is_named_and_layers_that_are_left_out_are_not(tiny_vit):
    report = initialize(tiny_vit(), Mimetic(where=["blocks.0.attn", "blocks.9.attn"]))
    assert report.warnings == ["Mimetic: where: 'blocks.9.attn' selects no attention layer"]
    assert initialize(tiny_vit(), Mimetic(where="blocks.0.attn")).warnings == []


@pytest.mark.parametrize(("kind", "right", "what"), [
    (partial(MlpMean, 0.1), "blocks.0.mlp", "MLP"), (Positions, "pos_embed", "positions"),
    (DeltaOrthogonal, "head", "layer"), (SpatialFilters, "patch_embed.proj", "depthwise convolution"),
])  # fmt: skip
def test_every_kind_of_site_names_a_pattern_that_selects_nothing_beside_one_that_does(tiny_vit, kind, right, what):
    model = tiny_vit()
    model.patch_embed.proj = nn.Conv2d(3, 3, 4, groups=3)
    (warning,) = initialize(model, kind(where=[right, "haed"])).warnings
    assert warning.endswith(f": where: 'haed' selects no {what}")


def test_a_pattern_is_of_a_layer_or_of_a_module_around_it(tiny_vit):
    model = tiny_vit(depth=11)
    for where, chosen in (("blocks.1", [1]), ("1", [1]), ("blocks.1*", [1, 10]), ("blocks.[0-1].attn", [0, 1]),
                          (["blocks.2", "3.attn"], [2, 3]), ("locks.1", []), ("blocks", list(range(11)))):  # fmt: skip
        assert [site.name for site in attention_sites(model, where)] == [f"blocks.{n}.attn" for n in chosen]


def test_a_matrix_of_a_wrong_shape_is_refused_with_the_right_one(tiny_vit, as_installed):
    def wrong(weights):
        attention_sites(weights)[0].query = torch.zeros(2, 8, 16)

    with pytest.raises(StructuredInitError, match=r"query of 'blocks.0.attn' has shape \(2, 16, 8\), got \(2, 8, 16\)"):
        initialize(tiny_vit(), Does(wrong))


class Temporal(nn.Module):
    """Attention by its name alone, with four projections."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        maps = (self.q(x) @ self.k(x).mT).unsqueeze(1).softmax(-1)
        return self.o(maps.squeeze(1) @ self.v(x))


@pytest.mark.parametrize("name", ["attn", "attn1", "temporal_attn", "row_attention", "attn_block"])
def test_what_a_capture_takes_for_attention_a_report_does_too(name):
    model = nn.ModuleDict({name: Temporal(), "attn_norm": nn.LayerNorm(4), "attn_drop": nn.Dropout()})
    assert unknown_attention(model) == {name: "Temporal"}
    called = [each for each, module in model.named_modules() if looks_like_attention(each, module)]
    assert called == [name]


def test_elementary_layers_are_no_attention_whatever_they_are_called():
    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    layers = {"post_attention_layernorm": RMSNorm(), "attn_gate": nn.Linear(4, 4), "ls_attn": LayerScale(4)}
    layers |= {"attn_norms": nn.ModuleList([RMSNorm()]), "attention_V": nn.Sequential(nn.Linear(4, 4), nn.Tanh())}
    assert not unknown_attention(nn.ModuleDict(layers))
    assert not [name for name, layer in layers.items() if looks_like_attention(name, layer)]
