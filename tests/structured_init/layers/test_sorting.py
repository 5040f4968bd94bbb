"""The activation that sorts."""

from __future__ import annotations

import pytest
import torch

from structured_init.layers import MaxMin


def test_maxmin_puts_the_larger_of_each_pair_into_the_first_half():
    assert MaxMin()(torch.tensor([[1.0, 5.0, 3.0, 2.0]])).tolist() == [[3.0, 5.0, 1.0, 2.0]]


def test_norms_of_inputs_and_gradients_are_kept():
    x = torch.randn(3, 8, 5, 5, requires_grad=True)
    y = MaxMin()(x)
    upstream = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, upstream)
    assert y.norm().item() == pytest.approx(x.norm().item(), rel=1e-6)
    assert gradient.norm().item() == pytest.approx(upstream.norm().item(), rel=1e-6)
