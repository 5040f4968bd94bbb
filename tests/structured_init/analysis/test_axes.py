"""The axes of captured maps are samples, heads, queries and keys whatever the host's own are, or the map is refused."""

from __future__ import annotations

import pytest
import torch
from hosts import alone, of_transformers
from timm.layers.halo_attn import HaloAttn
from timm.models import (
    cait,
    convit,
    davit,
    efficientvit_msra,
    hiera,
    nest,
    vision_transformer_sam,
)
from timm.models import xcit as xcit_models
from torch import nn

from structured_init import AttentionLayout, Projection, StructuredInitError, register_attention
from structured_init.analysis import NoAttentionError, capture_attention
from structured_init.hosts.known import ATTENTION
from structured_init.hosts.watching.records import MapAt


def randomized(module, std=0.4):
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):  # of batches that were seen: others take their own
            buffer.uniform_(0.5, 1.5)
    module.eval()  # which timm's EfficientViT-M answers with None
    return module


def sample(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


# name → (attention, input, (windows, heads, queries, keys) of a sample)
FAMILIES = {
    "SAM": lambda: (vision_transformer_sam.Attention(12, num_heads=3), sample(3, 4, 4, 12), (1, 3, 16, 16)),
    "NesT": lambda: (nest.Attention(12, num_heads=3), sample(3, 4, 5, 12), (4, 3, 5, 5)),
    "Hiera, in units": lambda: (
        hiera.MaskUnitAttention(12, 12, 3, q_stride=1, window_size=4, use_mask_unit_attn=True),
        sample(3, 8, 12),
        (2, 3, 4, 4),
    ),
    "HaloNet": lambda: (
        HaloAttn(12, num_heads=2, block_size=4, halo_size=1, feat_size=(8, 12)),
        sample(3, 12, 8, 12),
        (6, 2, 16, 36),
    ),
    "EfficientViT-M": lambda: (
        efficientvit_msra.CascadedGroupAttention(16, 4, 4, attn_ratio=1, resolution=3, kernels=(3, 3, 3, 3)),
        sample(3, 16, 3, 3),
        (1, 4, 9, 9),
    ),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sample_has_the_same_maps_alone_as_in_its_batch(name, fused):
    attention, x, (windows, heads, queries, keys) = FAMILIES[name]()
    attention = randomized(attention)
    if not fused and hasattr(attention, "fused_attn"):
        attention.fused_attn = False
    maps = capture_attention(alone(attention), x)["attn"]
    assert maps.shape == (3 * windows, heads, queries, keys)
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))
    for i in range(3):
        single = capture_attention(alone(attention), x[i : i + 1])["attn"]
        torch.testing.assert_close(maps[i * windows : (i + 1) * windows], single)
    assert not torch.allclose(maps[:windows], maps[windows : 2 * windows], atol=1e-3)


@pytest.mark.parametrize("fused", [True, False])
def test_nests_maps_are_those_of_the_definition_block_by_block(fused):
    attention, x, _ = FAMILIES["NesT"]()
    attention = randomized(attention)
    attention.fused_attn = fused
    maps = capture_attention(alone(attention), x)["attn"]
    query, key, _ = attention.qkv(x).double().chunk(3, dim=-1)
    for i in range(3):
        for block in range(4):
            for head in range(3):
                part = slice(4 * head, 4 * head + 4)
                logits = query[i, block, :, part] @ key[i, block, :, part].T / 2
                torch.testing.assert_close(maps[4 * i + block, head], logits.softmax(-1).float())


def test_caits_map_is_the_one_behind_its_second_mixing():
    attention, x = randomized(cait.TalkingHeadAttn(8, 2)), sample(3, 5, 8)
    query, key, _ = attention.qkv(x).chunk(3, dim=-1)
    logits = torch.stack([query[..., h : h + 4] @ key[..., h : h + 4].mT / 2 for h in (0, 4)], dim=-1)
    expected = attention.proj_w(attention.proj_l(logits).softmax(-2)).movedim(-1, 1)
    torch.testing.assert_close(capture_attention(alone(attention), x)["attn"], expected.detach())


def test_convits_two_halves_are_one_map():
    attention, x = randomized(convit.GPSA(8, num_heads=2)), sample(3, 9, 8)
    attention(x)  # builds the relative positions
    expected = attention.get_attention(x).detach()
    maps = capture_attention(alone(attention), x)
    assert list(maps) == ["attn"]
    torch.testing.assert_close(maps["attn"], expected)


TEXT = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "vocab_size": 40,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
}


def test_the_column_of_gpt_oss_sink_is_cut_off():
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    sizes |= {"num_local_experts": 2, "num_experts_per_tok": 1}
    model = of_transformers("GptOssModel", 0, **TEXT, **sizes, attn_implementation="eager").eval()
    ids = torch.arange(3, 27).view(2, 12)
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
    for layer, reference in zip(capture_attention(model, ids).values(), expected, strict=True):
        torch.testing.assert_close(layer, reference)
        assert layer.shape == (2, 2, 12, 12)


def test_longformers_maps_are_its_own_in_chunks_of_queries():
    model = of_transformers("LongformerModel", 0, **TEXT, num_attention_heads=4, attention_window=4).eval()
    ids = torch.arange(3, 27).view(2, 12)
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions  # (B, H, N, keys from two before to two behind)
    maps = capture_attention(model, ids)
    assert list(maps) == ["encoder.layer.0.attention", "encoder.layer.1.attention"]  # which the four matrices lie in
    for layer, reference in zip(maps.values(), expected, strict=True):
        assert layer.shape == (2 * 6, 4, 2, 6)  # chunks of two queries, and the chunks around as keys
        for offset in range(5):
            for row in range(2):
                got = layer.view(2, 6, 4, 2, 6)[:, :, :, row, row + offset].movedim(1, 2)
                torch.testing.assert_close(got, reference[:, :, row::2, offset])


CHANNELS = {
    "XCiT": lambda: xcit_models.XCA(12, num_heads=2),
    "DaViT": lambda: davit.ChannelAttention(12, num_heads=2),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_attention_between_channels_is_refused(name):
    with pytest.raises(NoAttentionError, match="captured: attn: it attends between channels, not between tokens"):
        capture_attention(alone(CHANNELS[name]()), sample(3, 9, 12))


def test_as_many_tokens_as_channels_of_a_head_are_still_tokens():
    attention = vision_transformer_sam.Attention(12, num_heads=3)
    assert capture_attention(alone(attention), sample(2, 2, 2, 12))["attn"].shape == (2, 3, 4, 4)
    mixed = cait.TalkingHeadAttn(8, 2)
    assert capture_attention(alone(mixed), sample(3, 4, 8))["attn"].shape == (3, 2, 4, 4)


def test_layers_that_are_refused_beside_others_are_named_in_a_warning():
    torch.manual_seed(0)
    model = davit.DaVit(depths=(1, 1), embed_dims=(8, 16), num_heads=(2, 4), window_size=2, num_classes=3)
    said = "no attention map of stages.0.blocks.0.1.attn, stages.1.blocks.0.1.attn: it attends between channels"
    with pytest.warns(UserWarning, match=said):
        maps = capture_attention(model, sample(2, 3, 32, 32))
    assert list(maps) == ["stages.0.blocks.0.0.attn", "stages.1.blocks.0.0.attn"]
    capture_attention(model, sample(2, 3, 32, 32), layers=["*.0.0.attn"])  # what was not asked for is not warned of


class Written(nn.Module):
    """Attention that is written out, with what a test asks for between softmax and values."""

    num_heads = 2

    def __init__(self, between=lambda maps: maps, multiply=torch.matmul):
        super().__init__()
        self.between, self.multiply, self.heads = between, multiply, nn.Linear(8, 8)

    def forward(self, x):
        heads = self.heads(x).unflatten(-1, (2, -1)).movedim(-2, 1)
        return self.multiply(self.between((heads @ heads.mT).softmax(-1)), heads)


PRODUCTS = {
    "matmul": torch.matmul,
    "from the right": lambda maps, values: (values.mT @ maps.mT).mT,
    "bmm": lambda maps, values: torch.bmm(maps.flatten(0, 1), values.flatten(0, 1)),
    "einsum": lambda maps, values: torch.einsum("bhij,bhjd->bihd", maps, values),
    "einsum with the output projection": lambda maps, values: torch.einsum(
        "bhij,bhjd,hde->bie", maps, values, nn.Parameter(torch.ones(2, 4, 3))
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_map_is_what_is_multiplied_with_the_values_in_whatever_way(name):
    x, host = sample(3, 5, 8), alone(Written(torch.tril, PRODUCTS[name]))
    heads = host.attn.heads(x).unflatten(-1, (2, -1)).movedim(-2, 1)
    expected = (heads @ heads.mT).softmax(-1).tril()
    torch.testing.assert_close(capture_attention(host, x)["attn"], expected.detach())


class Split(nn.Module):
    """Attention over the last axis of tokens but one, however many stand before it; 0 heads: without their axis."""

    def __init__(self, heads, attend):
        super().__init__()
        self.parts, self.attend = heads, attend
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, dim=-1)
        if self.parts:
            parts = [part.unflatten(-1, (self.parts, -1)).transpose(-3, -2) for part in parts]
        mixed = self.attend(*parts)
        return self.out(mixed.transpose(-3, -2).flatten(-2) if self.parts else mixed)


class Video(nn.Module):
    def __init__(self, heads, *attend):
        super().__init__()
        self.space, self.time = (Split(heads, each) for each in attend)

    def forward(self, x):
        x = x + self.space(x)
        return x + self.time(x.transpose(1, 2)).transpose(1, 2)


def written_out(query, key, value):
    return (query @ key.mT).softmax(-1) @ value


fused = nn.functional.scaled_dot_product_attention


@pytest.mark.parametrize(("heads", "attend"), [(3, (fused, written_out)), (0, (written_out, fused))])
def test_axes_before_the_tokens_are_samples_where_the_module_does_not_say_its_heads(heads, attend):
    model, x = randomized(Video(heads, *attend)), sample(2, 5, 7, 12)
    maps = capture_attention(model, x)
    assert {name: each.shape for name, each in maps.items()} == {
        "space": (10, heads or 1, 7, 7),
        "time": (14, heads or 1, 5, 5),
    }
    query, key, _ = model.space.qkv(x[1, 4]).chunk(3, dim=-1)
    width, scale = 12 // (heads or 1), (12 // (heads or 1)) ** -0.5 if attend[0] is fused else 1.0
    expected = (scale * query[:, -width:] @ key[:, -width:].mT).softmax(-1)  # of the last head
    torch.testing.assert_close(maps["space"][9, -1], expected.detach())


class HeadsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (2, 4)) for each in (self.q, self.k, self.v))
        maps = torch.einsum("bihd,bjhd->bijh", q, k).div(2).softmax(2)
        return self.o(torch.einsum("bijh,bjhd->bihd", maps, v).flatten(2))


def test_maps_whose_last_axis_is_the_heads_are_put_in_order():
    layer, x = HeadsLast(), sample(2, 5, 8)
    query, key = (each(x).unflatten(-1, (2, 4)).transpose(1, 2) for each in (layer.q, layer.k))
    expected = (query @ key.mT / 2).softmax(-1)
    torch.testing.assert_close(capture_attention(nn.Sequential(layer), x)["0"], expected.detach())


class HeadsFirst(nn.Module):
    """Attention of four heads whose maps are (heads, samples, queries, keys), or samples first."""

    def __init__(self, heads_first, fused):
        super().__init__()
        self.num_heads, self.fused = 4, fused
        self.order = (2, 3, 0, 1, 4) if heads_first else (2, 0, 3, 1, 4)
        self.back = (1, 2, 0, 3) if heads_first else (0, 2, 1, 3)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(self.order)
        if self.fused:
            heads = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            heads = (query @ key.mT / 2).softmax(-1) @ value
        return self.proj(heads.permute(self.back).flatten(2))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("samples", [1, 3, 4, 8])
def test_maps_stored_heads_first_are_those_stored_samples_first_also_with_as_many_samples_as_heads(samples, fused):
    first, second = alone(HeadsFirst(True, fused)), alone(HeadsFirst(False, fused))
    second.load_state_dict(first.state_dict())
    x = sample(samples, 5, 16)
    torch.testing.assert_close(capture_attention(first, x)["attn"], capture_attention(second, x)["attn"])


def test_maps_of_a_registered_class_may_be_stored_heads_first(monkeypatch):
    def layout(module):
        inputs = (Projection(module.qkv.weight, 4, 4, start=start) for start in (0, 16, 32))
        return AttentionLayout(*inputs, Projection(module.proj.weight, 4, 4, axis=1))

    first, second = alone(HeadsFirst(True, fused=False)), alone(HeadsFirst(False, fused=False))
    second.load_state_dict(first.state_dict())
    x = sample(4, 5, 16)
    monkeypatch.setattr(ATTENTION, "_describe", dict(ATTENTION._describe))
    register_attention(HeadsFirst)(layout)
    torch.testing.assert_close(capture_attention(first, x)["attn"], capture_attention(second, x)["attn"])


class ThreeFromThree(nn.Module):
    """Two heads for two samples; of three samples or more, the first product takes maps of a third head."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        heads = 3 if len(x) > 2 else 2
        q, k, v = (of(x).unflatten(-1, (heads, -1)).transpose(1, 2) for of in (self.query, self.key, self.value))
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.output(mixed.transpose(1, 2).flatten(2))


def test_maps_that_are_no_multiple_of_the_heads_that_were_seen_are_refused():
    x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(0))
    with pytest.raises(StructuredInitError, match="on this batch its maps are computed in another way"):
        capture_attention(ThreeFromThree(), x)


@pytest.mark.parametrize("samples_first", [True, False])
def test_maps_of_more_samples_than_were_watched_are_told_from_two_and_not_from_one(samples_first):
    true = torch.randn(3, 2, 5, 5)  # samples, heads, queries, keys
    flat = (true if samples_first else true.transpose(0, 1)).flatten(0, 1)
    heads = (0, 1, 0, 1) if samples_first else (0, 0, 1, 1)
    assert torch.equal(MapAt(("", 1), True, heads).arranged(flat), true)
    with pytest.raises(StructuredInitError, match="one sample does not tell whether heads or samples come first"):
        MapAt(("", 1), True, (0, 1)).arranged(flat)
