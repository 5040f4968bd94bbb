"""Positions that enter the logits: what is read off a host is what the host computes."""

from __future__ import annotations

import importlib

import pytest
import timm
import torch
from hosts import of_transformers

from structured_init import attention_positions, attention_sites
from structured_init.weights import Weights
from structured_init.writer import writing

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TEXT = {"vocab_size": 20, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
LONG = {"max_position_embeddings": 16}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 20}
BEIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "use_abs_pos_emb": False}
SWIN = {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2)}


def kinds(model):
    weights = Weights(model)
    found = [vars(attention_positions(site, weights)) for site in attention_sites(weights)]
    return [[kind for kind, positions in each.items() if positions] for each in found]


def first(model, kind):
    weights = Weights(model)
    site = attention_sites(weights)[0]
    return site, getattr(attention_positions(site, weights), kind)


def beit(**options):
    return timm.models.beit.Beit(**BEIT, **options, num_classes=3)


GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8}
HOSTS = {
    "GPT-2": (lambda: of_transformers("GPT2Model", **GPT2, **TEXT), [["absolute"], ["absolute"]]),
    "Llama": (lambda: of_transformers("LlamaModel", **WIDTH, **TEXT), [["rotary"], ["rotary"]]),
    "T5, whose first layer has the table": (lambda: of_transformers("T5EncoderModel", **T5), [["relative"], []]),
    "BLOOM": (lambda: of_transformers("BloomModel", hidden_size=16, n_layer=1, n_head=2, **TEXT), [[]]),
    "MPT": (lambda: of_transformers("MptModel", d_model=16, n_heads=2, n_layers=1, vocab_size=20), [[]]),
    "BEiT": (lambda: beit(use_rel_pos_bias=True), [["relative"], ["relative"]]),
    "layer of torch": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), [[]]),
}


@pytest.mark.parametrize("name", HOSTS)
def test_every_layer_knows_its_kind_of_positions(name):
    build, wanted = HOSTS[name]
    assert kinds(build()) == wanted


# Tables


@pytest.mark.parametrize("decoder", [False, True])
def test_t5s_entries_are_those_that_it_adds(decoder):
    stack = of_transformers("T5Model", **T5)
    stack = stack.decoder if decoder else stack.encoder
    site, table = first(stack, "relative")
    bias = site.module.compute_bias(40, 40)[0]
    offsets = range(0 if decoder else -30, 30)
    rows = table.rows(torch.tensor([[0, offset] for offset in offsets]))
    for offset, row in zip(offsets, rows.tolist(), strict=True):
        query = 35 if offset > 0 else 2
        assert torch.equal(bias[:, query, query - offset], table.table[row])
    assert table.shared
    assert table.grid is None


TABLES = {
    "BEiT": (lambda: beit(use_rel_pos_bias=True), 1, lambda model: model.blocks[0].attn._get_rel_pos_bias()),
    "BEiT with one table": (lambda: beit(use_shared_rel_pos_bias=True), 1, lambda model: model.rel_pos_bias()),
    "Swin": (
        lambda: timm.models.swin_transformer.SwinTransformer(**SWIN, num_classes=3),
        0,
        lambda model: model.layers[0].blocks[0].attn._get_rel_pos_bias(),
    ),
    "BEiT of transformers": (
        lambda: of_transformers("BeitModel", **WIDTH, image_size=16, patch_size=4, use_relative_position_bias=True),
        1,
        lambda model: model.layers[0].relative_position_bias((4, 4)),
    ),
    "Swin of transformers": (
        lambda: of_transformers(
            "SwinModel", image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=4
        ),
        0,
        lambda model: model.encoder.layers[0].blocks[0].attention.relative_position_bias(),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_entry_of_an_offset_is_added_between_patches_so_far_apart(name):
    build, prefix, bias_of = TABLES[name]
    model = build()
    _, table = first(model, "relative")
    with writing() as writer:
        weights = Weights(model, writer)
        for offset, value in (((0, 1), 3.0), ((2, -1), 5.0)):
            table.set(weights, 1, offset, value, "test")
        weights.flush()
    bias = bias_of(model).detach().reshape(2, 16 + prefix, 16 + prefix)[:, prefix:, prefix:].reshape(2, 4, 4, 4, 4)
    for value, (rows, columns) in ((3.0, (0, 1)), (5.0, (2, -1))):
        found = {tuple(place) for place in (bias[1] == value).nonzero().tolist()}
        assert found == {
            (y, x, y - rows, x - columns)
            for y in range(4)
            for x in range(4)
            if 0 <= y - rows < 4 and 0 <= x - columns < 4
        }
    assert not torch.isin(bias[0], torch.tensor([3.0, 5.0])).any()
    assert table.grid == (4, 4)
    assert table.shared == (name == "BEiT with one table")


# Rotations


@pytest.mark.parametrize(
    ("kind", "options", "turned"),
    [
        ("Llama", {}, 8),
        ("Qwen2", {"num_key_value_heads": 1}, 8),
        ("GPTNeoX", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, 4),
        ("Phi", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, 4),
    ],
)
def test_the_host_turns_a_pair_by_its_frequency(kind, options, turned):
    model = of_transformers(f"{kind}Model", **WIDTH, **TEXT, **LONG, **options)
    site, found = first(model, "rotary")
    apply = importlib.import_module(type(site.module).__module__).apply_rotary_pos_emb
    assert len(found.frequencies) == turned
    vector = torch.zeros(1, 1, 6, 16)
    vector[..., found.pairs[:, 0]] = 1.0
    cos, sin = model.rotary_emb(vector, torch.arange(6)[None])
    part = cos.shape[-1]
    with_positions, _ = apply(vector[..., :part], vector[..., :part], cos, sin)
    place = torch.arange(6, dtype=torch.float64)[:, None] * found.frequencies
    assert torch.allclose(with_positions[0, 0][:, found.pairs[:, 0]].double(), place.cos(), atol=1e-6)
    assert torch.allclose(with_positions[0, 0][:, found.pairs[:, 1]].double(), place.sin(), atol=1e-6)
