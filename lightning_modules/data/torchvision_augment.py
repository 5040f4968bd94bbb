"""The augmentation of recipes that use torchvision's transforms, whose RandAugment is another one than timm's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from lightning_modules.data.augment import Augmentation, as_array, as_picture
from structured_init.errors import StructuredInitError


class TorchvisionAugmentation(Augmentation):
    """Square random resized crop, flip, RandAugment, colour jitter; after the normalization, erasing.

    Draws from torch's global generator, which the caller has seeded for the image.

    Args:
        image_size: side of the result in pixels.
        crop_scale: smallest share of the area that the crop keeps, in (0, 1]; the largest is 1, the crop is square.
        rand_augment_ops: how many of RandAugment's operations are applied to an image; 0 for none.
        rand_augment_magnitude: their strength, from 0 to 30.
        color_jitter: how much brightness, contrast and saturation change, as a share; 0 for none.
        random_erasing: probability that a rectangle is set to the mean after the normalization.

    Raises:
        StructuredInitError: an argument is out of its range.

    Source:
        locuslab/convmixer-cifar10 2d3d9b7, ``train.py``; its defaults are the defaults here.
    """

    def __init__(
        self,
        image_size: int,
        crop_scale: float = 0.75,
        rand_augment_ops: int = 1,
        rand_augment_magnitude: int = 8,
        color_jitter: float = 0.1,
        random_erasing: float = 0.25,
    ) -> None:
        from torchvision import transforms

        super().__init__(image_size, flip=True)
        _check(crop_scale, rand_augment_ops, rand_augment_magnitude, color_jitter, random_erasing)
        self.resized_crop = transforms.RandomResizedCrop(image_size, scale=(crop_scale, 1.0), ratio=(1.0, 1.0))
        self.steps = transforms.Compose(
            [
                self.resized_crop,
                transforms.RandomHorizontalFlip(),
                transforms.RandAugment(rand_augment_ops, rand_augment_magnitude),
                transforms.ColorJitter(color_jitter, color_jitter, color_jitter),
            ]
        )
        self.erase = transforms.RandomErasing(random_erasing, inplace=True) if random_erasing > 0 else None

    def pixels(self, image: NDArray[np.uint8] | Image.Image) -> NDArray[np.uint8]:
        """Crop, flip and change the colours of an image (H, W, C); the result is (image_size, image_size, C)."""
        picture = as_picture(image)
        gray = picture.mode == "L"
        picture = self.steps(picture.convert("RGB"))
        return as_array(picture.convert("L") if gray else picture)

    def normalized(self, image: torch.Tensor) -> torch.Tensor:
        """Erase a part of a normalized image (C, H, W), in place."""
        return image if self.erase is None else self.erase(image)


def _check(crop_scale: float, ops: int, magnitude: int, jitter: float, erasing: float) -> None:
    if not 0 < crop_scale <= 1 or not 0 <= erasing <= 1:
        raise StructuredInitError("crop_scale is a share of the area in (0, 1], and random_erasing a probability")
    if ops < 0 or not 0 <= magnitude <= 30 or jitter < 0:
        raise StructuredInitError(
            "rand_augment_ops and color_jitter are 0 (off) or more, and rand_augment_magnitude is from 0 to 30"
        )
