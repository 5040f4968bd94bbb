from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.analysis.channel_mixing import (
    channel_matrix,
    channels_needed,
    filter_basis,
    mixing_residual,
    numerical_rank,
)


def low_rank_inputs(rank, channels, seed=0):
    """Inputs (4, D, 9, 9) whose channels are combinations of ``rank`` random maps."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(4, rank, 9, 9, generator=generator, dtype=torch.float64)
    mixing = torch.randn(channels, rank, generator=generator, dtype=torch.float64)
    return torch.einsum("brhw,dr->bdhw", maps, mixing)


def drawn(count, size, seed=1):
    return torch.randn(count, size, size, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(rank=st.integers(1, 6), seed=st.integers(0, 1000))
def test_the_rank_of_the_inputs_is_that_of_what_they_were_made_of(rank, seed):
    assert numerical_rank(channel_matrix(low_rank_inputs(rank, 12, seed))) == rank


def test_the_filter_basis_spans_the_filters_and_is_orthonormal():
    parts = drawn(3, 3)
    filters = torch.einsum("fr,rhw->fhw", torch.randn(20, 3, generator=torch.Generator().manual_seed(2)), parts)
    basis = filter_basis(filters)
    assert basis.shape == (3, 3, 3)
    flat = basis.flatten(1)
    torch.testing.assert_close(flat @ flat.mT, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(filters.double().flatten(1) @ flat.mT @ flat, filters.double().flatten(1))


@pytest.mark.parametrize(("rank", "size"), [(1, 3), (2, 3), (3, 3), (1, 5)])
def test_random_filters_reach_any_filter_from_the_proposed_number_of_channels_on_and_not_before(rank, size):
    needed = channels_needed(rank, size)
    assert needed == rank * size**2
    residuals = {
        channels: mixing_residual(
            low_rank_inputs(rank, channels), drawn(channels, size), drawn(3, size, seed=7), torch.tensor([0, 1, 2])
        )
        for channels in (needed - 1, needed)
    }
    assert residuals[needed].max() < 1e-8
    assert residuals[needed - 1].min() > 1e-4
