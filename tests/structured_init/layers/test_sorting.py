"""The activations that sort."""

from __future__ import annotations

import pytest
import torch

from structured_init.layers import GroupSort, MaxMin


def test_maxmin_puts_the_larger_of_each_pair_into_the_first_half():
    x = torch.tensor([[1.0, 5.0, 3.0, 2.0]])
    assert MaxMin()(x).tolist() == [[3.0, 5.0, 1.0, 2.0]]
    assert torch.equal(MaxMin(dim=-1)(x[:, None]), MaxMin()(x)[:, None])


def test_groupsort_sorts_neighbouring_channels():
    x = torch.tensor([[3.0, 1.0, 2.0, 9.0, 8.0, 7.0]])
    assert GroupSort(3)(x).tolist() == [[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]]
    assert GroupSort()(x).tolist() == [[1.0, 3.0, 2.0, 9.0, 7.0, 8.0]]
    assert torch.equal(GroupSort(3, dim=-1)(x[:, None]), GroupSort(3)(x)[:, None])


@pytest.mark.parametrize("activation", [MaxMin(), GroupSort(), GroupSort(4)])
def test_norms_of_inputs_and_gradients_are_kept(activation):
    x = torch.randn(3, 8, 5, 5, requires_grad=True)
    y = activation(x)
    upstream = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, upstream)
    assert y.norm().item() == pytest.approx(x.norm().item(), rel=1e-6)
    assert gradient.norm().item() == pytest.approx(upstream.norm().item(), rel=1e-6)
