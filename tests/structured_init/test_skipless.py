"""Skipless: truncated αZ + βI in every head, and a product of values and outputs that is c² times orthogonal.

Letters: H heads, D embed_dim, k head_dim. Source of the formula: 2510.00345, at second hand.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention
from torch import nn

from structured_init import Skipless, attention_sites, initialize

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
