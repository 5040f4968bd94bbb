"""All pairs of kernels at once, as one by one."""

import pytest
import torch

from structured_init import StructuredInitError
from structured_init.analysis.cka import hsic1, hsic1_table


def test_the_table_has_what_pairs_have_one_by_one():
    features = torch.randn(3, 2, 7, 4, generator=torch.Generator().manual_seed(0))
    kernels = features @ features.mT + 5  # a constant, which no pair notices
    table = hsic1_table(kernels)
    for i, one in enumerate(kernels):
        for j, other in enumerate(kernels):
            assert table[i, j].item() == pytest.approx(hsic1(one, other).mean().item(), abs=1e-9)
    with pytest.raises(StructuredInitError, match="at least 4 samples"):
        hsic1_table(kernels[..., :3, :3])
