"""Skipless: truncated αZ + βI in every head, and a product of values and outputs that is c² times orthogonal.

Letters: H heads, D embed_dim, k head_dim. Source of the formula: 2510.00345, at second hand.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention
from torch import nn

from structured_init import Mimetic, Skipless, StructuredInitError, attention_sites, initialize

SHAPES = settings(max_examples=25, deadline=None, derandomize=True)


def layer(width, heads, head_dim):
    return nn.ModuleDict({"attn": Attention(width, num_heads=heads, attn_head_dim=head_dim, dtype=torch.float64)})


def product(site):
    group = site.num_heads // site.num_key_value_heads
    return sum(site.value[h // group].double() @ site.output[h].double() for h in range(site.num_heads)).numpy()


@SHAPES
@given(st.integers(2, 20), st.integers(1, 4), st.integers(1, 8), st.integers(0, 99))
def test_query_key_product_is_the_truncated_noisy_identity_of_each_head(
    generator, truncated, width, heads, head_dim, seed
):
    model = layer(width, heads, head_dim)
    initialize(model, Skipless(), seed=seed)
    (site,) = attention_sites(model)
    source = generator(seed, "attn", "query_key")
    for head in range(heads):
        z = torch.randn(width, width, dtype=torch.float64, generator=source).numpy() / width**0.5
        expected = truncated(2.0 * z + 0.6 * np.eye(width), head_dim)
        np.testing.assert_allclose((site.query[head] @ site.key[head].mT).numpy(), expected, atol=1e-11)


@SHAPES
@given(st.integers(2, 20), st.integers(1, 4), st.integers(1, 8), st.floats(0.1, 5))
def test_values_and_outputs_are_c_times_semi_orthogonal_and_so_is_their_product(width, heads, head_dim, scale):
    model = layer(width, heads, head_dim)
    initialize(model, Skipless(vo_scale=scale))
    (site,) = attention_sites(model)
    rank = min(width, heads * head_dim)
    value, output = site.value.movedim(0, 1).reshape(width, -1), site.output.reshape(-1, width)
    for matrix in (value, output):
        np.testing.assert_allclose(np.linalg.svd(matrix.numpy(), compute_uv=False), scale, rtol=1e-10)
    singular = np.linalg.svd(product(site), compute_uv=False)
    np.testing.assert_allclose(singular[:rank], scale**2, rtol=1e-10)
    np.testing.assert_allclose(singular[rank:], 0, atol=1e-10)


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 4), (4, 7)])
def test_the_product_is_the_orthogonal_part_of_the_gaussian_that_was_drawn(heads, head_dim, generator):
    """U Vᵀ is the polar factor G (Gᵀ G)^−½, which has no signs to choose; heads wider than the tokens keep it."""
    model = layer(12, heads, head_dim)
    initialize(model, Skipless(), seed=4)
    gaussian = torch.randn(12, 12, dtype=torch.float64, generator=generator(4, "attn", "value_output")).numpy()
    eigenvalues, vectors = np.linalg.eigh(gaussian.T @ gaussian)
    polar = gaussian @ (vectors / eigenvalues**0.5) @ vectors.T
    np.testing.assert_allclose(product(attention_sites(model)[0]), 9 * polar, atol=1e-9)


def test_no_head_is_empty_where_heads_together_are_wider_than_the_tokens():
    model = layer(8, 4, 6)
    initialize(model, Skipless())
    (site,) = attention_sites(model)
    assert torch.linalg.matrix_norm(site.value).min() > 1
    assert torch.linalg.matrix_norm(site.output).min() > 1


def test_values_and_outputs_are_drawn_apart():
    """W_v W_o is no multiple of ±I: on average its diagonal is zero, with standard deviation c²/√D."""
    model = layer(64, 4, 16)
    initialize(model, Skipless())
    diagonal = np.diag(product(attention_sites(model)[0]))
    assert abs(diagonal.mean()) < 4 * 9 / 64
    assert diagonal.std() == pytest.approx(9 / 8, rel=0.5)


def test_the_query_key_part_is_mimetics_with_other_constants():
    ours, mimetic = layer(12, 3, 4), layer(12, 3, 4)
    initialize(ours, Skipless(qk_alpha=0.7, qk_beta=0.7, noise="uniform", value_output=False), seed=1)
    initialize(mimetic, Mimetic(value_output=False, noise="uniform"), seed=1)
    (first,), (second,) = attention_sites(ours), attention_sites(mimetic)
    torch.testing.assert_close(first.query @ first.key.mT, second.query @ second.key.mT, rtol=0, atol=1e-12)


def test_only_weights_of_attention_are_written(tiny_vit):
    model = tiny_vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = initialize(model, Skipless())
    written = {f"blocks.{i}.attn.{name}.weight" for i in (0, 1) for name in ("qkv", "proj")}
    assert {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])} == written
    assert {name for entry in report.changed for name in entry.names} == written


def test_a_grouped_rotary_host_has_the_target_on_the_span_of_its_shared_keys(generator):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        intermediate_size=24,
        vocab_size=11,
        pad_token_id=0,
    )
    model = transformers.LlamaModel(config).double()
    report = initialize(model, Skipless(), seed=2)
    (site,) = attention_sites(model)
    source = generator(2, site.name, "query_key")
    targets = [2 * torch.randn(16, 16, dtype=torch.float64, generator=source).numpy() / 4 for _ in range(4)]
    targets = [target + 0.6 * np.eye(16) for target in targets]
    for head, target in enumerate(targets):
        first = head - head % 2
        shared = np.linalg.svd(np.concatenate(targets[first : first + 2]))[2][:6].T
        np.testing.assert_allclose(
            (site.query[head] @ site.key[head // 2].mT).numpy(), target @ shared @ shared.T, atol=1e-9
        )
    singular = np.linalg.svd(product(site), compute_uv=False)
    np.testing.assert_allclose(singular, [9] * 12 + [0] * 4, atol=1e-9)
    assert "RoPE" in report.notes[site.name]
    leading = site.key[0].square().sum(dim=0)
    assert not torch.equal(leading, leading.sort(descending=True).values)  # turned: strengths are not in order


@pytest.mark.parametrize("host", ["vit", "bert", "gpt2", "torch"])
def test_every_host_gets_the_products(host, generator, truncated):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
    model = {
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**small, image_size=8, patch_size=4)),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**small, vocab_size=11)),
        "gpt2": lambda: transformers.GPT2Model(
            transformers.GPT2Config(n_embd=16, n_layer=1, n_head=4, vocab_size=11, n_positions=8)
        ),
        "torch": lambda: nn.TransformerEncoderLayer(16, 4, 24),
    }[host]().double()
    initialize(model, Skipless(), seed=6)
    (site,) = attention_sites(model)
    z = torch.randn(16, 16, dtype=torch.float64, generator=generator(6, site.name, "query_key")).numpy() / 4
    expected = truncated(2 * z + 0.6 * np.eye(16), 4)
    np.testing.assert_allclose((site.query[0] @ site.key[0].mT).numpy(), expected, atol=1e-11)
    np.testing.assert_allclose(product(site) @ product(site).T, 81 * np.eye(16), atol=1e-9)


def test_cross_attention_between_two_widths_has_no_identity_and_is_refused():
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(12, 3, kdim=20, vdim=20, dtype=torch.float64)})
    message = "the query–key product of 'attn' maps width 12 to 20, but αZ \\+ βI must be square"
    with pytest.raises(StructuredInitError, match=message):
        initialize(model, Skipless(cross=True))
    initialize(model, Skipless(cross=True, query_key=False))
    (site,) = attention_sites(model, cross=True)
    np.testing.assert_allclose(np.linalg.svd(product(site), compute_uv=False), 9, rtol=1e-10)
