"""Flip, crop, RandAugment and erasing, one image at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_modules.data.augment import Augmentation
from lightning_modules.data.seeded import derive_seeds, seed_here
from structured_init.undisturbed import own_random_state

PICTURE = np.arange(16 * 16 * 3, dtype=np.uint32).reshape(16, 16, 3).astype(np.uint8)


def draws(augmentation: Augmentation, picture: np.ndarray = PICTURE, count: int = 400) -> list[np.ndarray]:
    results = []
    with own_random_state(0):
        for seed in range(count):
            seed_here(seed)
            results.append(augmentation.pixels(picture))
    return results


def test_flip_mirrors_half_of_the_images():
    results = draws(Augmentation(16, flip=True))
    mirrored = [np.array_equal(result, PICTURE[:, ::-1]) for result in results]
    assert all(mirror or np.array_equal(result, PICTURE) for mirror, result in zip(mirrored, results, strict=True))
    assert 150 < sum(mirrored) < 250  # five standard deviations


def test_crop_shifts_by_every_offset_and_fills_with_black():
    picture = np.zeros((8, 8, 1), dtype=np.uint8)
    picture[4, 4] = 255
    places = {tuple(np.argwhere(result)[0][:2]) for result in draws(Augmentation(8, crop_padding=2), picture)}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}


def test_rand_augment_draws_what_timm_draws():
    from timm.data.auto_augment import rand_augment_transform

    ours = draws(Augmentation(16, rand_augment="rand-m9-mstd0.5-inc1", mean=(0.5, 0.5, 0.5)), count=50)
    policy = rand_augment_transform("rand-m9-mstd0.5-inc1", {"translate_const": 7, "img_mean": (128, 128, 128)})
    with own_random_state(0):
        for seed, result in enumerate(ours):
            seed_here(seed)
            np.testing.assert_array_equal(result, np.asarray(policy(Image.fromarray(PICTURE))))
    assert sum(not np.array_equal(result, PICTURE) for result in ours) > 25


def test_erasing_replaces_a_part_by_noise():
    image = torch.zeros(3, 16, 16)
    with own_random_state(0):
        seed_here(0)
        Augmentation(16, random_erasing=1.0).normalized(image)
    erased = (image != 0).any(dim=0).float().mean().item()
    assert 0.02 <= erased <= 0.4  # timm's range is 0.02 to 1/3 of the area


def test_random_states_come_back_also_after_an_error():
    random.seed(5)
    expected = random.getstate(), torch.get_rng_state()

    @own_random_state(0)
    def fail():
        seed_here(1)
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert random.getstate() == expected[0]
    assert torch.equal(torch.get_rng_state(), expected[1])


def test_seeds_are_those_of_splitmix64():
    """Two steps of the published generator from state 0, in whole numbers of Python."""
    mask, state, golden = 2**64 - 1, 0, 0x9E3779B97F4A7C15
    for part in (3, 7):
        state = (state + part + golden) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    assert int(derive_seeds(3, 7)[0]) == state
