"""Conditioned: every singular value of queries and keys is one, and values are read from known coordinates."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention
from torch import nn

from structured_init import Conditioned, attention_sites, initialize
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


def test_keys_are_drawn_under_their_own_name_whatever_the_queries_took():
    (site,), _ = started(layer(6, 2, 3))
    generator = Draws(3).generator("attn", "key")
    assert torch.equal(site.key, semi_orthogonal_heads(2, 6, 3, generator=generator))
