from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules.tasks.image import mix, mixed_cross_entropy


def one_colour_images(count=6, side=9):
    """Image i is i everywhere: what is mixed can be read from its pixels."""
    return torch.arange(count, dtype=torch.float64).view(-1, 1, 1, 1).expand(count, 1, side, side + 2).clone()


def test_without_mixing_the_images_are_returned_untouched_and_nothing_is_drawn():
    rng = np.random.default_rng(0)
    images = one_colour_images()
    mixed, weight = mix(images, mixup=0.0, cutmix=0.0, rng=rng)
    assert mixed is images
    assert weight == 1.0
    assert rng.random() == np.random.default_rng(0).random()


@given(seed=st.integers(0, 10_000))
def test_mixup_weights_each_image_and_its_predecessor_by_what_it_returns(seed):
    images = one_colour_images()
    mixed, weight = mix(images, mixup=0.8, cutmix=0.0, rng=np.random.default_rng(seed))
    torch.testing.assert_close(mixed, weight * images + (1 - weight) * images[[5, 0, 1, 2, 3, 4]])


@given(seed=st.integers(0, 10_000))
def test_cutmix_returns_the_share_of_pixels_that_an_image_keeps(seed):
    images = one_colour_images()
    mixed, weight = mix(images, mixup=0.0, cutmix=1.0, rng=np.random.default_rng(seed))
    own = (mixed == images).double().mean((1, 2, 3))
    partner = (mixed == images[[5, 0, 1, 2, 3, 4]]).double().mean((1, 2, 3))
    torch.testing.assert_close(own, torch.full((6,), weight, dtype=torch.float64))
    torch.testing.assert_close(own + partner, torch.ones(6, dtype=torch.float64))


def test_with_both_about_half_of_the_batches_are_cut():
    rng = np.random.default_rng(0)
    blended = [mix(one_colour_images(), mixup=1.0, cutmix=1.0, rng=rng)[0] for _ in range(200)]
    cut = sum(bool((batch == batch.round()).all()) for batch in blended)
    assert 70 < cut < 130


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mixed_loss_is_the_cross_entropy_of_the_mixed_distribution(smoothing):
    logits, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    hard = F.one_hot(labels, 4).double()
    target = (1 - smoothing) * (0.3 * hard + 0.7 * hard[[5, 0, 1, 2, 3, 4]]) + smoothing / 4
    expected = -(target * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(mixed_cross_entropy(logits, labels, 0.3, smoothing), expected)
