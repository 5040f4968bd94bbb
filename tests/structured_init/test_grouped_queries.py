"""Heads that share a key: no head is preferred, and no number is lost."""

from __future__ import annotations

import torch
from hosts import of_transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init import Mimetic, attention_sites, initialize
from structured_init.attention.products import share_key


def test_no_head_of_a_group_has_a_stronger_diagonal_than_another():
    """The first head of each group had twice the diagonal of the others."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 13}
    model = of_transformers("LlamaModel", **sizes, num_attention_heads=8, num_key_value_heads=2)
    initialize(model, Mimetic(positions="keep", value_output=False), seed=3)
    (site,) = attention_sites(model)
    products = site.query @ site.key.repeat_interleave(4, dim=0).mT
    diagonals = products.diagonal(dim1=1, dim2=2).mean(dim=1)
    assert diagonals.min() > 0
    assert diagonals.max() / diagonals.min() < 1.15  # 1.08 here; 2.0 where the first head chose


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 15), st.integers(0, 99))
def test_a_shared_key_is_as_long_as_its_queries_are_on_average_and_no_number_is_lost(dim, group, rank, seed):
    targets = torch.randn(group, dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    query, key = share_key(iter(targets), iter(targets), rank)
    assert query.shape == (group, dim, rank)
    assert key.shape == (dim, rank)
    torch.testing.assert_close(query.square().sum() / group, key.square().sum())
    if rank >= dim:
        torch.testing.assert_close(query @ key.mT, targets, atol=1e-6, rtol=1e-6)
