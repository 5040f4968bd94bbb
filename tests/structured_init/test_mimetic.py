"""Mimetic: the products are those of the published formula, computed here in numpy from the documented draws.

Letters: H heads, D embed_dim, k head_dim. Source of the formula and of the measured numbers: 2305.09828.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from timm.layers import Attention
from torch import nn

from structured_init import Mimetic, StructuredInitError, attention_sites, initialize

SIZES = [  # D, H, k: usual, one head, many heads, H·k < D, H·k > D, k > D
    (12, 3, 4),
    (16, 1, 16),
    (24, 8, 3),
    (20, 2, 5),
    (12, 4, 7),
    (6, 2, 9),
]


def layer(width, heads, head_dim, dtype=torch.float64):
    return nn.ModuleDict({"attn": Attention(width, num_heads=heads, attn_head_dim=head_dim, dtype=dtype)})


def drawn(count, dim, source, noise):
    """The Z of ``count`` targets, one after the other: N(0, 1/D), or uniform with the same variance."""
    if noise == "normal":
        return [torch.randn(dim, dim, dtype=torch.float64, generator=source).numpy() / dim**0.5 for _ in range(count)]
    uniform = [torch.rand(dim, dim, dtype=torch.float64, generator=source).numpy() for _ in range(count)]
    return [(2 * u - 1) * (3 / dim) ** 0.5 for u in uniform]


@pytest.mark.parametrize("noise", ["normal", "uniform"])
@pytest.mark.parametrize(("width", "heads", "head_dim"), SIZES)
def test_query_key_product_is_the_truncated_noisy_identity_of_each_head(
    width, heads, head_dim, noise, generator, truncated
):
    model = layer(width, heads, head_dim)
    initialize(model, Mimetic(qk_alpha=0.6, qk_beta=0.3, noise=noise), seed=5)
    (site,) = attention_sites(model)
    for head, z in enumerate(drawn(heads, width, generator(5, "attn", "query_key"), noise)):
        product = (site.query[head] @ site.key[head].mT).numpy()
        np.testing.assert_allclose(product, truncated(0.6 * z + 0.3 * np.eye(width), head_dim), atol=1e-12)


@pytest.mark.parametrize("balance_heads", [True, False])
@pytest.mark.parametrize("noise", ["normal", "uniform"])
@pytest.mark.parametrize(("width", "heads", "head_dim"), SIZES)
def test_value_output_product_is_the_truncated_noisy_negative_identity(
    width, heads, head_dim, noise, balance_heads, generator, truncated
):
    model = layer(width, heads, head_dim)
    initialize(model, Mimetic(vo_alpha=0.5, vo_beta=0.2, noise=noise, balance_heads=balance_heads), seed=5)
    (site,) = attention_sites(model)
    (z,) = drawn(1, width, generator(5, "attn", "value_output"), noise)
    product = sum((site.value[head] @ site.output[head]).numpy() for head in range(heads))
    np.testing.assert_allclose(product, truncated(0.5 * z - 0.2 * np.eye(width), heads * head_dim), atol=1e-12)


@pytest.mark.parametrize("balance_heads", [True, False])
@pytest.mark.parametrize(("width", "heads"), [(12, 3), (16, 1), (24, 8)])
def test_circulated_orientation_stores_the_factors_untransposed(width, heads, balance_heads, generator):
    """The circulating code: ``qkv.weight[2 * D:] = L; proj.weight = R`` with L R = αZ − βI (reference/§1.3)."""
    model = layer(width, heads, width // heads)
    initialize(model, Mimetic(orientation="circulated", balance_heads=balance_heads), seed=2)
    (z,) = drawn(1, width, generator(2, "attn", "value_output"), "normal")
    u, s, vt = np.linalg.svd(0.4 * z - 0.4 * np.eye(width))
    signs = np.sign(u[np.abs(u).argmax(0), np.arange(width)])  # LAPACK leaves them open: largest entry positive
    left, right = u * signs * s**0.5, (s**0.5)[:, None] * (vt * signs[:, None])
    value, output = model["attn"].qkv.weight[2 * width :].detach().numpy(), model["attn"].proj.weight.detach().numpy()
    np.testing.assert_allclose(value.T @ output.T, left.T @ right.T, atol=1e-12)
    if not balance_heads:
        np.testing.assert_allclose(value, left, atol=1e-12)
        np.testing.assert_allclose(output, right, atol=1e-12)


def head_norms(site):
    return [torch.linalg.matrix_norm(site.value[h] @ site.output[h]).item() for h in range(site.num_heads)]


def test_balanced_heads_share_the_product_equally_and_unbalanced_ones_do_not():
    """Measured for D = 192, H = 3 when the circulating code was read: 6.47/3.99/1.76 against 4.17/4.16/4.16."""
    found = {}
    for balance in (True, False):
        model = layer(192, 3, 64)
        initialize(model, Mimetic(query_key=False, balance_heads=balance))
        found[balance] = head_norms(attention_sites(model)[0])
    np.testing.assert_allclose(found[False], [6.47, 3.99, 1.76], rtol=0.04)
    np.testing.assert_allclose(found[True], [4.16] * 3, rtol=0.04)


def test_the_kept_query_key_part_has_the_published_diagonal_and_makes_attention_sharp():
    """D = 192, k = 64: mean diagonal 0.394, and 0.92 to 0.96 of a random token's attention on itself (§1.2, §1.4)."""
    model = layer(192, 3, 64)
    initialize(model, Mimetic())
    (site,) = attention_sites(model)
    for head in range(3):
        product = site.query[head] @ site.key[head].mT
        assert product.diagonal().mean().item() == pytest.approx(0.394, abs=0.02)
        tokens = torch.randn(197, 192, dtype=torch.float64, generator=torch.Generator().manual_seed(head))
        tokens = nn.functional.layer_norm(tokens, (192,))
        attention = (tokens @ product @ tokens.mT * site.scale).softmax(-1)
        assert 0.9 < attention.diagonal().mean().item() < 0.98


def test_the_strength_is_split_evenly_between_the_two_factors():
    model = layer(20, 2, 10)
    initialize(model, Mimetic(balance_heads=False))
    (site,) = attention_sites(model)
    for head in range(2):
        torch.testing.assert_close(site.query[head].norm(dim=0), site.key[head].norm(dim=0))
    value, output = site.value.movedim(0, 1).reshape(20, 20), site.output.reshape(20, 20)
    torch.testing.assert_close(value.norm(dim=0), output.norm(dim=1))


def test_circulated_orientation_refuses_heads_that_do_not_fill_the_width():
    with pytest.raises(StructuredInitError, match="needs heads × head_dim = embed_dim, which 'attn' has not"):
        initialize(layer(20, 2, 5), Mimetic(orientation="circulated"))


def test_a_width_that_sincos_cannot_fill_is_one_line(tiny_vit):
    with pytest.raises(StructuredInitError, match="a multiple of 4, got 18"):
        initialize(tiny_vit(embed_dim=18), Mimetic())
