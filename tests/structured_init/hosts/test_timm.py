"""Attention of timm and torch: a site is what the module does, and the maps that are captured are the site's."""

from __future__ import annotations

import pytest
import torch
from hosts import alone
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention, AttentionRope
from timm.models import beit, davit, deit, eva, swin_transformer, swin_transformer_v2, xcit
from timm.models import vision_transformer_relpos as relpos
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from structured_init import Mimetic, Positions, StructuredInitError, attention_sites, initialize, position_sites
from structured_init.analysis import audit, capture_attention

FEW = settings(max_examples=4, deadline=None, derandomize=True)
WINDOW = (2, 3)


class LowRank(nn.Module):
    """A linear map with an adapter beside it, written by hand: it has none of the attributes of ``nn.Linear``."""

    def __init__(self, linear):
        super().__init__()
        self.linear, self.down = linear, nn.Linear(linear.in_features, 2)
        self.up = nn.Linear(2, linear.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


class Int8(nn.Module):
    """A linear map whose weight is stored in 8 bits, written by hand."""

    def __init__(self, linear):
        super().__init__()
        self.register_buffer("scale", linear.weight.detach().abs().max() / 127)
        self.register_buffer("numbers", (linear.weight.detach() / self.scale).round().to(torch.int8))
        self.bias = linear.bias

    def forward(self, x):
        return nn.functional.linear(x, self.numbers * self.scale, self.bias)


@pytest.mark.parametrize(
    ("replacement", "close", "why", "recorded"),
    [
        (LowRank, 1e-5, "its queries go through an adapter", "qkv.linear"),
        (Int8, 1e-3, "its queries", "proj"),
    ],
)
def test_attention_whose_map_was_replaced_is_captured_and_named_not_written(replacement, close, why, recorded):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = VisionTransformer(img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3)
    (before,) = capture_attention(model, images).values()
    attention = model.blocks[0].attn
    attention.qkv = replacement(attention.qkv)
    (maps,) = capture_attention(model, images).values()
    torch.testing.assert_close(maps, before, rtol=0, atol=close)
    if replacement is LowRank:
        nn.init.ones_(attention.qkv.up.bias)
    with pytest.raises(StructuredInitError, match=f"Attention has no layout: {why}"):
        initialize(model, Mimetic(), batch=images)
    assert f"blocks.0.attn.{recorded}.weight" in {name for record in audit(model).records for name in record.names}


class OfTorch(nn.MultiheadAttention):
    """Attention of torch to its own tokens."""

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


# name → builder (heads H, head_dim k, qk-norm and the like on or off)
LAYERS = {
    "torch": lambda h, k, extra: OfTorch(h * k, h, bias=extra, batch_first=True),
    "attention": lambda h, k, extra: Attention(
        h * k + 1, h, attn_head_dim=k, qk_norm=extra, gated=extra, norm_layer=nn.LayerNorm
    ),
    "beit": lambda h, k, extra: beit.Attention(h * k, h, qkv_bias=extra, qkv_bias_separate=extra),
    "rope": lambda h, k, extra: AttentionRope(
        h * k + 1, h, attn_head_dim=k, qk_norm=extra, scale_norm=extra, norm_layer=nn.LayerNorm
    ),
    "rope, grouped": lambda h, k, extra: AttentionRope(
        2 * h * k, 2 * h, num_kv_heads=h, qkv_fused=False, qk_norm=extra, norm_layer=nn.LayerNorm
    ),
    "eva": lambda h, k, extra: eva.EvaAttention(h * k, h, scale_norm=extra, norm_layer=nn.LayerNorm, gated=extra),
    "eva, apart": lambda h, k, extra: eva.EvaAttention(
        h * k, h, qkv_fused=False, scale_norm=False, qk_norm=extra, norm_layer=nn.LayerNorm
    ),
    "swin": lambda h, k, extra: swin_transformer.WindowAttention(h * k + 1, h, head_dim=k, window_size=WINDOW),
    "swin 2": lambda h, k, extra: swin_transformer_v2.WindowAttention(h * k, WINDOW, h, qkv_bias_separate=extra),
    "davit": lambda h, k, extra: davit.WindowAttention(h * k, WINDOW, h),
}


def build(kind, heads, head_dim, extra, seed):
    torch.manual_seed(seed)
    model = alone(LAYERS[kind](heads, head_dim, extra))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


sizes = st.tuples(st.integers(1, 3), st.integers(2, 5), st.booleans(), st.integers(0, 99))


def what_the_host_does_besides(module, x):
    """Everything that stands between the four matrices, from the module itself."""
    besides = {"norms": (getattr(module, "q_norm", None), getattr(module, "k_norm", None))}
    if isinstance(module, swin_transformer.WindowAttention):
        besides["bias"] = module._get_rel_pos_bias()
    if isinstance(module, swin_transformer_v2.WindowAttention):
        for parameter in module.cpb_mlp.parameters():  # one and the same bias everywhere
            nn.init.zeros_(parameter)
        nn.init.constant_(module.logit_scale, 1.5)
        besides["norms"] = (lambda t: nn.functional.normalize(t, dim=-1),) * 2
    gate, norm = getattr(module, "gate", None), getattr(module, "norm", None)

    def between(mixed):
        mixed = norm(mixed) if norm is not None else mixed
        return mixed * gate(x).sigmoid() if gate is not None else mixed

    return {**besides, "between": between}


@pytest.mark.parametrize("kind", LAYERS)
@FEW
@given(size=sizes)
def test_output_and_captured_map_are_those_of_the_four_matrices(attend, without_biases, kind, size):
    model = without_biases(build(kind, *size))
    x = torch.randn(2, 6, attention_sites(model)[0].embed_dim, dtype=torch.float64)
    besides = what_the_host_does_besides(model.attn, x)
    (site,) = attention_sites(model)
    maps, output = attend(site, x, **besides)
    torch.testing.assert_close(model(x), output, rtol=1e-9, atol=1e-9)
    captured = capture_attention(model, x)
    assert list(captured) == [site.name] == ["attn"]
    torch.testing.assert_close(captured["attn"], maps.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
@FEW
@given(size=sizes, part=st.sampled_from(["query", "key", "value", "output"]))
def test_what_is_written_is_read_back_and_nothing_else_changes(check_round_trip, kind, size, part):
    check_round_trip(build(kind, *size), part)


@pytest.mark.parametrize("kind", LAYERS)
@FEW
@given(size=sizes)
def test_mimetic_products_are_the_formulas(check_mimetic, kind, size):
    heads, head_dim, _, seed = size
    report = check_mimetic(build(kind, heads, head_dim, False, seed))
    assert ("RoPE" in report.notes.get("attn", "")) == kind.startswith(("rope", "eva"))


def test_a_norm_before_the_output_projection_is_noted():
    report = initialize(build("rope", 2, 4, True, 0), Mimetic())
    assert "normalizes between values and output" in report.notes["attn"]
    assert "normalizes queries and keys" in report.notes["attn"]


TINY = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
WINDOWS = {**TINY, "depths": (2, 1), "num_heads": (2, 4), "window_size": 2}
del WINDOWS["depth"]
# name → (builder, grid of the attention, prefix tokens, grid of the positions or None, rows before it)
MODELS = {
    "vit": (lambda: VisionTransformer(**TINY), (4, 4), 1, (4, 4), 1),
    "vit, no_embed_class": (lambda: VisionTransformer(**TINY, no_embed_class=True), (4, 4), 1, (4, 4), 0),
    "vit, registers": (lambda: VisionTransformer(**TINY, reg_tokens=3), (4, 4), 4, (4, 4), 4),
    "vit, no positions": (lambda: VisionTransformer(**TINY, pos_embed="none"), (4, 4), 1, None, 0),
    "vit, wide": (lambda: VisionTransformer(**{**TINY, "img_size": (6, 10)}), (3, 5), 1, (3, 5), 1),
    "deit, distilled": (lambda: deit.VisionTransformerDistilled(**TINY), (4, 4), 2, (4, 4), 2),
    "eva": (lambda: eva.Eva(**TINY, use_rot_pos_emb=True), (4, 4), 1, (4, 4), 1),
    "dinov3": (
        lambda: eva.Eva(
            **TINY, attn_type="rope", use_rot_pos_emb=True, use_abs_pos_emb=False, num_reg_tokens=4, init_values=1e-5
        ),
        (4, 4),
        5,
        None,
        0,
    ),
    "beit": (lambda: beit.Beit(**TINY), (4, 4), 1, (4, 4), 1),
    "beit, relative": (lambda: beit.Beit(**TINY, use_abs_pos_emb=False, use_rel_pos_bias=True), (4, 4), 1, None, 0),
    "relpos": (lambda: relpos.VisionTransformerRelPos(**TINY, class_token=True), (4, 4), 1, None, 0),
    "swin": (lambda: swin_transformer.SwinTransformer(**WINDOWS), (2, 2), 0, None, 0),
    "swin 2": (lambda: swin_transformer_v2.SwinTransformerV2(**WINDOWS), (2, 2), 0, None, 0),
}


def tiny(kind):
    torch.manual_seed(0)
    return MODELS[kind][0]().eval()


@pytest.mark.parametrize("kind", MODELS)
def test_captured_layers_are_the_sites_in_order_and_have_their_tokens(kind):
    model = tiny(kind)
    _, grid, prefix, *_ = MODELS[kind]
    images = torch.randn(2, 3, *((6, 10) if grid == (3, 5) else (8, 8)))
    maps, sites = capture_attention(model, images), attention_sites(model, batch=images)
    assert list(maps) == [site.name for site in sites]
    for site in sites:
        assert maps[site.name].shape[1] == site.num_heads
        assert (site.grid, site.prefix_tokens) == (grid, prefix)
        assert maps[site.name].shape[2:] == (prefix + grid[0] * grid[1],) * 2


@pytest.mark.parametrize("kind", ["vit", "eva", "dinov3", "beit, relative", "relpos"])
def test_fused_and_written_out_attention_give_the_same_maps(kind):
    """With RoPE and relative positions on, so that the maps are not those of the matrices alone."""
    model, images = tiny(kind), torch.randn(2, 3, 8, 8)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    fused = capture_attention(model, images)
    for site in attention_sites(model, batch=images):
        site.module.fused_attn = False
    written_out = capture_attention(model, images)
    assert list(fused) == list(written_out)
    for name, maps in fused.items():
        torch.testing.assert_close(written_out[name], maps, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_positions_are_written_behind_the_prefix_tokens(kind):
    model = tiny(kind)
    *_, grid, first = MODELS[kind]
    if grid is None:
        assert position_sites(model) == []
        return
    before = model.pos_embed.detach().clone()
    (site,) = position_sites(model)
    assert (site.name, site.grid, site.num_tokens) == ("pos_embed", grid, grid[0] * grid[1])
    assert torch.equal(site.value, before[0, first:])
    initialize(model, Positions("gaussian"))
    assert torch.equal(model.pos_embed[:, :first], before[:, :first])
    assert (model.pos_embed[:, first:] != before[:, first:]).all()


def test_a_layer_scale_that_is_a_bare_parameter_is_noted():
    report = initialize(tiny("dinov3"), Mimetic())
    assert "LayerScale 1e-0" in report.notes["blocks.0.attn"]
    assert "hides the branch" in report.notes["blocks.0.attn"]


def test_attention_over_channels_is_reported_and_the_rest_is_initialized():
    """XCiT attends over channels, where W_q W_kᵀ means something else; its last layers are class attention."""
    model = xcit.Xcit(img_size=16, patch_size=8, embed_dim=16, depth=2, cls_attn_layers=1, num_heads=2, num_classes=3)
    images = torch.randn(1, 3, 16, 16)
    report = initialize(model, Mimetic(), batch=images)
    assert [site.name for site in attention_sites(model, batch=images)] == ["cls_attn_blocks.0.attn"]
    said = {name for name, why in report.skipped.items() if why.startswith("XCA has no layout: it attends between")}
    assert said == {"blocks.0.attn", "blocks.1.attn"}
    selected = initialize(model, Mimetic(where="cls_attn_blocks.*"), batch=images)
    assert not any("XCA" in why for why in selected.skipped.values())
