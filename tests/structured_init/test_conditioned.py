"""Conditioned: every singular value of queries and keys is one, and values are read from known coordinates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from timm.layers import Attention
from torch import nn

from structured_init import Conditioned, StructuredInitError, attention_sites, initialize
from structured_init.attention.conditioned import semi_orthogonal_heads
from structured_init.draws import Draws

SHAPES = settings(max_examples=25, deadline=None, derandomize=True)


def layer(width, heads, head_dim):
    return nn.ModuleDict({"attn": Attention(width, num_heads=heads, attn_head_dim=head_dim, dtype=torch.float64)})


def started(model, **options):
    report = initialize(model, Conditioned(**options), seed=3)
    return attention_sites(model, cross=options.get("cross", False)), report


@SHAPES
@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 9))
def test_every_head_has_condition_number_one_whatever_the_widths(width, heads, head_dim):
    (site,), _ = started(layer(width, heads, head_dim))
    for matrix in (*site.query, *site.key):
        assert matrix.shape == (width, head_dim)
        np.testing.assert_allclose(np.linalg.svd(matrix.numpy(), compute_uv=False), 1, atol=1e-12)


@SHAPES
@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 9))
def test_values_are_the_rectangular_identity_of_the_layer(width, heads, head_dim):
    """Head h hands on coordinates h·k to (h+1)·k, so the heads side by side are the tokens, cut or padded by zeros."""
    (site,), report = started(layer(width, heads, head_dim))
    tokens = torch.randn(5, width, dtype=torch.float64)
    side_by_side = torch.cat([tokens @ value for value in site.value], dim=1)
    padded = torch.cat([tokens, tokens.new_zeros(5, heads * head_dim)], dim=1)[:, : heads * head_dim]
    torch.testing.assert_close(side_by_side, padded, rtol=0, atol=0)
    beyond = heads * head_dim > width
    assert ("values beyond start at zero" in report.notes.get("attn", "")) == beyond


@SHAPES
@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 9))
def test_values_can_be_the_same_rectangular_identity_in_every_head(width, heads, head_dim):
    (site,), report = started(layer(width, heads, head_dim), identity="head")
    for value in site.value.numpy():
        assert np.array_equal(value, np.eye(width, head_dim))
    assert report.notes == {}


def test_queries_and_keys_of_all_heads_are_independent():
    """Two independent subspaces of k in D dimensions overlap by k²/D on average, an equal pair by k."""
    width, heads, k = 96, 4, 12
    (site,), _ = started(layer(width, heads, k))
    matrices = [*site.query, *site.key]
    for i, first in enumerate(matrices):
        for second in matrices[:i]:
            overlap = torch.linalg.matrix_norm(first.mT @ second).square().item()
            assert overlap == pytest.approx(k * k / width, rel=0.5)


def test_the_draw_is_uniform_over_orthonormal_frames():
    """The first entry of a uniform unit vector in D dimensions, squared, is Beta(1/2, (D − 1)/2)."""
    entries = []
    for seed in range(60):
        model = layer(8, 2, 4)
        initialize(model, Conditioned(value=False), seed=seed)
        (site,) = attention_sites(model)
        entries += (site.query[:, 0, 0] ** 2).tolist() + (site.key[:, 0, 0] ** 2).tolist()
    assert stats.kstest(entries, stats.beta(0.5, 3.5).cdf).pvalue > 1e-3


def test_output_projection_biases_and_the_rest_are_left_to_the_host(tiny_vit):
    model = tiny_vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = initialize(model, Conditioned())
    written = {f"blocks.{i}.attn.qkv.weight" for i in (0, 1)}
    assert {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])} == written
    assert {name for entry in report.changed for name in entry.names} == written


@pytest.mark.parametrize(("part", "changed"), [("query_key", slice(0, 32)), ("value", slice(32, 48))])
def test_each_part_can_stand_alone(tiny_vit, part, changed):
    model = tiny_vit()
    weight = model.blocks[0].attn.qkv.weight
    before = weight.detach().clone()
    initialize(model, Conditioned(**{"query_key": False, "value": False, part: True}))
    differs = (weight != before).any(dim=1)
    assert differs[changed].all()
    assert differs.sum() == differs[changed].numel()


def hosts():
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
    text = {**small, "vocab_size": 11, "max_position_embeddings": 8}
    return {
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**small, image_size=8, patch_size=4)),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**text)),
        "gpt2": lambda: transformers.GPT2Model(
            transformers.GPT2Config(n_embd=16, n_layer=1, n_head=4, vocab_size=11, n_positions=8)
        ),
        "llama": lambda: transformers.LlamaModel(
            transformers.LlamaConfig(**text, num_key_value_heads=2, head_dim=6, pad_token_id=0)
        ),
        "torch": lambda: nn.TransformerEncoderLayer(16, 4, 24),
    }


@pytest.mark.parametrize("host", ["vit", "bert", "gpt2", "llama", "torch"])
def test_every_host_gets_the_same_matrices(host):
    (site,), report = started(hosts()[host]().double())
    groups = 2 if host == "llama" else 4
    assert site.key.shape[0] == site.value.shape[0] == groups
    for matrix in (*site.query, *site.key):
        gram = matrix.mT @ matrix
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype), rtol=0, atol=1e-12)
    together = site.value.movedim(0, 1).reshape(16, -1)
    assert torch.equal(together, torch.eye(16, together.shape[1], dtype=torch.float64))
    said = "the query–key product is exact at distance 0 and fades beyond it"
    assert (said in str(report.notes)) == (host == "llama")
    assert "output projection" not in str(report.notes)  # of which nothing is written


def test_cross_attention_is_written_when_asked_for_at_its_two_widths():
    """Keys and values of another width than the queries'."""
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(12, 3, kdim=20, vdim=20, dtype=torch.float64)})
    with pytest.raises(StructuredInitError, match="nothing but cross-attention"):
        initialize(model, Conditioned())
    (site,), _ = started(model, cross=True)
    assert (site.query.shape, site.key.shape) == ((3, 12, 4), (3, 20, 4))
    for matrix in (*site.query, *site.key):
        np.testing.assert_allclose(np.linalg.svd(matrix.numpy(), compute_uv=False), 1, atol=1e-12)


def test_keys_are_drawn_under_their_own_name_whatever_the_queries_took():
    (site,), _ = started(layer(6, 2, 3))
    generator = Draws(3).generator("attn", "key")
    assert torch.equal(site.key, semi_orthogonal_heads(2, 6, 3, generator=generator))
