"""The augmentation of the ConvMixers: torchvision's transforms in the published order."""

from __future__ import annotations

import random

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T

from lightning_modules.data import TorchvisionAugmentation
from lightning_modules.data.images import ImageSet
from lightning_modules.data.seeded import derive_seeds, seed_here
from structured_init.undisturbed import own_random_state

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
PICTURES = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)


def image_set(augmentation, images=PICTURES, **statistics):
    statistics = {"mean": MEAN, "std": STD, **statistics}
    rows = np.arange(len(images))
    return ImageSet(images, rows, rows % 2, **statistics, augmentation=augmentation, seed=3)


def test_an_image_goes_through_the_published_steps_in_their_order():
    published = T.Compose(
        [
            T.RandomResizedCrop(32, scale=(0.75, 1.0), ratio=(1.0, 1.0)),
            T.RandomHorizontalFlip(p=0.5),
            T.RandAugment(num_ops=2, magnitude=12),
            T.ColorJitter(0.2, 0.2, 0.2),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    ours = image_set(TorchvisionAugmentation(32, 0.75, 2, 12, 0.2, 0.0))
    keys = [(4, index) for index in range(6)]
    images, _ = ours.__getitems__(keys)
    with own_random_state(0):
        for (epoch, index), image in zip(keys, images, strict=True):
            seed_here(int(derive_seeds(3, epoch, index)[0]))
            torch.testing.assert_close(image, published(Image.fromarray(PICTURES[index])))


def test_erasing_comes_after_the_normalization_and_sets_the_mean():
    plain = image_set(TorchvisionAugmentation(32, 1.0, 0, 0, 0.0, 0.0))
    erased = image_set(TorchvisionAugmentation(32, 1.0, 0, 0, 0.0, 1.0))
    keys = [(0, index) for index in range(6)]
    before, after = plain.__getitems__(keys)[0], erased.__getitems__(keys)[0]
    changed = (before != after).any(1)
    assert (after.permute(0, 2, 3, 1)[changed] == 0).all()
    assert changed.float().mean((1, 2)).min() >= 0.01  # torchvision erases 2 to 33 % of the area


def test_a_sample_is_a_function_of_seed_epoch_and_index_and_leaves_the_global_states_alone():
    data = image_set(TorchvisionAugmentation(32))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    first = data[(1, 2)][0]
    batch = data.__getitems__([(0, 5), (1, 2), (1, 3)])[0]
    assert torch.equal(batch[1], first)
    assert not torch.equal(data[(2, 2)][0], first)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
