"""transformers' attention classes: a site is what the module does, and the maps that are captured are the library's."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import pytest
import torch
from hosts import of_transformers
from torch import nn

from structured_init import Mimetic, Positions, attention_sites, initialize, position_sites
from structured_init.analysis import capture_attention

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
IMAGE = {"image_size": 8, "patch_size": 4}
TEXT = {"vocab_size": 13, "max_position_embeddings": 12, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
GROUPED = {**WIDTH, **TEXT, "num_key_value_heads": 2, "head_dim": 6}
DECODER = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
DECODER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "decoder_start_token_id": 1}
DECODER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Case(NamedTuple):
    """A model of transformers; ``positions`` are the table's name and the rows before the first token of it."""

    model: str
    settings: dict[str, Any]
    inputs: str
    grid: tuple[int, int] | None = None
    prefix: int = 0
    positions: tuple[str, int] | None = None


SEEN, READ = WIDTH | IMAGE, WIDTH | TEXT
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 13, "bos_token_id": 0}
WHISPER = {**DECODER, "vocab_size": 13, "num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 7}
WAVES = {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 4), "num_conv_pos_embeddings": 4}
WAVES |= {"num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
TABLE, CLIP_TABLE = "embeddings.position_embeddings", "embeddings.position_embedding.weight"
CASES = {
    "vit": Case("ViTModel", SEEN, "images", (2, 2), 1, (TABLE, 1)),
    "dinov2": Case("Dinov2Model", SEEN, "images", (2, 2), 1, (TABLE, 1)),
    "dinov2, registers": Case(
        "Dinov2WithRegistersModel", {**SEEN, "num_register_tokens": 3}, "images", (2, 2), 4, (TABLE, 1)
    ),
    "dinov3": Case("DINOv3ViTModel", {**SEEN, "num_register_tokens": 2}, "images", (2, 2), 3),
    "clip vision": Case("CLIPVisionModel", SEEN, "images", (2, 2), 1, (CLIP_TABLE, 1)),
    "clip text": Case("CLIPTextModel", READ, "text", positions=(CLIP_TABLE, 0)),
    "siglip vision": Case(
        "SiglipVisionModel", {**SEEN, "vision_use_head": False}, "images", (2, 2), 0, (CLIP_TABLE, 0)
    ),
    "bert": Case("BertModel", READ, "text", positions=(f"{TABLE}.weight", 0)),
    "roberta": Case("RobertaModel", READ, "text", positions=(f"{TABLE}.weight", 2)),
    "gpt2": Case("GPT2Model", {**GPT2, "n_positions": 12}, "text", positions=("wpe.weight", 0)),
    "gpt2, scaled by layer": Case(
        "GPT2Model", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, "text", positions=("wpe.weight", 0)
    ),
    "gpt_neox": Case("GPTNeoXModel", READ, "text"),
    "llama": Case("LlamaModel", {**GROUPED, "attention_bias": True}, "text"),
    "qwen3": Case("Qwen3Model", GROUPED, "text"),
    "whisper": Case("WhisperModel", WHISPER, "audio and text"),
    "wav2vec2": Case("Wav2Vec2Model", WIDTH | WAVES, "waves"),
}
ROTARY = {"dinov3", "gpt_neox", "llama", "qwen3"}
ENCODER_DECODER = {"whisper"}


def build(kind, attention="sdpa"):
    case = CASES[kind]
    model = of_transformers(case.model, seed=0, **case.settings, attn_implementation=attention).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():  # libraries start so small that every map would be uniform
        nn.init.normal_(parameter, std=0.3)
    return model


def inputs(kind):
    source = torch.Generator().manual_seed(1)
    text = torch.randint(3, 13, (2, 7), generator=source)
    return {
        "images": {"pixel_values": torch.randn(2, 3, 8, 8, generator=source)},
        "text": {"input_ids": text},
        "audio and text": {
            "input_features": torch.randn(2, 4, 12, generator=source),
            "decoder_input_ids": text[:, :5],
        },
        "waves": {"input_values": torch.randn(2, 100, generator=source)},
    }[CASES[kind].inputs]


@pytest.mark.parametrize("kind", CASES)
def test_captured_maps_are_the_eager_attentions_under_the_names_of_the_sites(kind):
    cross = kind in ENCODER_DECODER
    maps = capture_attention(build(kind), **inputs(kind))
    assert list(maps) == [site.name for site in attention_sites(build(kind), cross=cross)]
    eager = build(kind, "eager")
    assert list(capture_attention(eager, **inputs(kind))) == list(maps)
    with torch.no_grad():
        out = eager(**inputs(kind), output_attentions=True)
    for name, expected in zip(maps, library_maps(out, cross), strict=True):
        torch.testing.assert_close(maps[name], expected, rtol=1e-4, atol=1e-5)


def library_maps(out, encoder_decoder):
    """In calling order: the encoder, then in each decoder layer its own tokens and those of the encoder."""
    if not encoder_decoder:
        return out.attentions
    pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
    return [*out.encoder_attentions, *(maps for pair in pairs for maps in pair)]


@pytest.mark.parametrize("kind", CASES)
def test_a_layers_output_is_that_of_the_four_matrices(attend, without_biases, kind):
    """The output projection too; RoPE is switched off by handing the layer an angle of zero."""
    model = without_biases(build(kind))
    for site in attention_sites(model, cross=True):
        module, x = site.module, torch.randn(2, 5, site.embed_dim, dtype=torch.float64)
        known = {"norms": (getattr(module, "q_norm", None), getattr(module, "k_norm", None))}
        inner = module.self if kind in ("bert", "roberta") else module
        # in transformers 5.17 DINOv2 takes none
        masked = "attention_mask" in inspect.signature(inner.forward).parameters
        arguments = {"attention_mask": None} if masked else {}
        if kind in ROTARY:
            turned = getattr(module, "rotary_ndims", site.head_dim)
            angle = torch.zeros(1, 5, turned, dtype=torch.float64)
            arguments["position_embeddings"] = (angle.cos(), angle.sin())
        if site.cross:
            context = known["context"] = torch.randn(2, 4, site.embed_dim, dtype=torch.float64)
            arguments["key_value_states"] = context
        causal = getattr(getattr(module, "self", module), "is_causal", False)
        _, expected = attend(site, x, causal=causal, **known)
        if kind in ("bert", "roberta"):
            output = module.output.dense(inner(x, **arguments)[0])
        else:
            output = module(x, **arguments)
            output = output if isinstance(output, torch.Tensor) else output[0]
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", CASES)
def test_what_is_written_is_read_back_and_nothing_else_changes(check_round_trip, kind):
    for part in ("query", "key", "value", "output"):
        check_round_trip(build(kind), part, cross=True)


@pytest.mark.parametrize("kind", CASES)
def test_mimetic_products_are_the_formulas_and_the_report_says_where_they_cannot_hold(check_mimetic, kind):
    report = check_mimetic(build(kind))
    names = [site.name for site in attention_sites(build(kind))]
    for words, kinds in (("RoPE", ROTARY), ("normalizes queries", {"qwen3"})):
        assert [name for name in names if words in report.notes.get(name, "")] == (names if kind in kinds else [])
    left_alone = [name for name, why in report.skipped.items() if "cross-attention is left alone" in why]
    assert left_alone == (["decoder.layers.0.encoder_attn"] if kind in ENCODER_DECODER else [])


def coordinates_fall(site):
    """Whether the strength of a head's query falls from its first to its last coordinate, as an SVD orders them."""
    return [bool((site.query[head].norm(dim=0).diff() <= 0).all()) for head in range(site.num_heads)]


def test_under_rope_no_coordinates_are_the_strongest_in_all_heads():
    models = build("vit"), build("gpt_neox")
    for model in models:
        initialize(model, Mimetic())
    ordered, turned = ([coordinates_fall(site) for site in attention_sites(model)] for model in models)
    assert ordered == [[True] * 4] * 2
    assert not any(all(heads) for heads in turned)


def test_heads_that_share_a_value_share_the_output_in_equal_parts():
    model = build("llama")
    initialize(model, Mimetic())
    for site in attention_sites(model):
        assert torch.equal(site.output[0::2], site.output[1::2])
        assert not torch.equal(site.query[0], site.query[1])


@pytest.mark.parametrize("kind", CASES)
def test_the_tokens_are_known_and_positions_are_written_behind_the_prefix(kind):
    model, case = build(kind), CASES[kind]
    assert {(site.grid, site.prefix_tokens) for site in attention_sites(model)} == {(case.grid, case.prefix)}
    if kind in ENCODER_DECODER:
        found = {site.name: site.num_tokens for site in position_sites(model)}
        assert found == {"encoder.embed_positions.weight": 6, "decoder.embed_positions.weight": 7}
        return
    if case.positions is None:
        assert position_sites(model) == []
        return
    name, first = case.positions
    (site,) = position_sites(model)
    assert (site.name, site.grid) == (name, case.grid)
    before = model.get_parameter(name).detach().clone().view(-1, 16)
    initialize(model, Positions("gaussian"))
    after = model.get_parameter(name).detach().view(-1, 16)
    assert torch.equal(after[:first], before[:first])
    assert (after[first:] != before[first:]).all()


def test_two_towers_of_clip_are_told_apart_and_where_selects_one():
    model = of_transformers("CLIPModel", seed=0, text_config=READ, vision_config=SEEN, projection_dim=8)
    tokens = {site.name: (site.grid, site.prefix_tokens) for site in attention_sites(model)}
    assert tokens == {
        **{f"text_model.encoder.layers.{i}.self_attn": (None, 0) for i in (0, 1)},
        **{f"vision_model.encoder.layers.{i}.self_attn": ((2, 2), 1) for i in (0, 1)},
    }
    report = initialize(model, Mimetic(where="vision_model.*"))
    changed = {name for entry in report.changed for name in entry.names}
    layers = [f"encoder.layers.{i}.self_attn.{part}_proj.weight" for i in (0, 1) for part in ("q", "k", "v", "out")]
    assert changed == {f"vision_model.{name}" for name in (CLIP_TABLE, *layers)}


@pytest.mark.parametrize(
    ("kind", "changes", "cross"),
    [
        ("bert", {"is_decoder": True, "add_cross_attention": True}, "encoder.layer.{}.crossattention"),
        ("gpt2", {"add_cross_attention": True}, "h.{}.crossattention"),
    ],
)
def test_cross_attention_of_decoders_is_found_when_asked(check_round_trip, kind, changes, cross):
    model = of_transformers(CASES[kind].model, **CASES[kind].settings, **changes)
    assert not any(site.cross for site in attention_sites(model))
    found = [site.name for site in attention_sites(model, cross=True) if site.cross]
    assert found == [cross.format(0), cross.format(1)]
    for part in ("query", "key", "value", "output"):
        check_round_trip(model, part, cross=True)


def test_the_token_that_pools_siglips_patches_is_cross_attention():
    model = of_transformers("SiglipVisionModel", **WIDTH, **IMAGE)
    assert [site.name for site in attention_sites(model, cross=True) if site.cross] == ["head.attention"]
