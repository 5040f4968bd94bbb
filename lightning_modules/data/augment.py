"""Random changes of a training image: flip, crop, RandAugment, erasing, in the order of timm's training pipeline."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from structured_init.util.errors import StructuredInitError


class Augmentation:
    """Changes one image; draws from the global python and numpy generators, which the caller has seeded for it.

    Args:
        image_size: side of the result in pixels.
        flip: mirror left and right with probability 1/2.
        crop_padding: pad with black by so many pixels and crop back at a random place; 0 for none.
        crop_scale: smallest and largest share of the area for a random resized crop; None for none.
        rand_augment: timm's RandAugment policy, e.g. ``rand-m9-mstd0.5-inc1``; None for none.
        random_erasing: probability that a rectangle is replaced by noise after the normalisation.
        mean: mean of the channels in [0, 1]; fills what RandAugment's shifts uncover.

    Raises:
        StructuredInitError: timm does not know the policy.

    Source: timm 1.0, ``timm/data/transforms_factory.py``, ``transforms_imagenet_train``.
    """

    def __init__(
        self,
        image_size: int,
        *,
        flip: bool = False,
        crop_padding: int = 0,
        crop_scale: Sequence[float] | None = None,
        rand_augment: str | None = None,
        random_erasing: float = 0.0,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        from timm.data.random_erasing import RandomErasing
        from timm.data.transforms import RandomResizedCropAndInterpolation

        self.image_size = image_size
        self.flip = flip
        self.crop_padding = crop_padding
        self.resized_crop = None
        if crop_scale is not None:
            scale = tuple(crop_scale)
            self.resized_crop = RandomResizedCropAndInterpolation(image_size, scale=scale, interpolation="random")
        self.policy = None if rand_augment is None else _rand_augment(rand_augment, image_size, mean)
        self.erase = RandomErasing(random_erasing, mode="pixel", device="cpu") if random_erasing > 0 else None

    @property
    def active(self) -> bool:
        """Whether anything random happens."""
        return bool(self.flip or self.crop_padding or self.resized_crop or self.policy or self.erase)

    def pixels(self, image: NDArray[np.uint8] | Image.Image) -> NDArray[np.uint8]:
        """Crop, flip and change the colours of an image (H, W, C); the result is (image_size, image_size, C)."""
        if self.resized_crop is not None:
            image = self.resized_crop(as_picture(image))
        array = as_array(image)
        if self.crop_padding:
            height, width, _ = array.shape
            around = self.crop_padding
            padded = np.pad(array, ((around, around), (around, around), (0, 0)))
            top, left = random.randint(0, 2 * around), random.randint(0, 2 * around)
            array = padded[top : top + height, left : left + width]
        if self.flip and random.random() < 0.5:
            array = array[:, ::-1]
        if self.policy is not None:
            gray = array.shape[2] == 1
            picture = self.policy(as_picture(array).convert("RGB"))  # timm's fill colours have three channels
            array = as_array(picture.convert("L") if gray else picture)
        return array

    def normalized(self, image: torch.Tensor) -> torch.Tensor:
        """Erase a part of a normalized image (C, H, W), in place."""
        return image if self.erase is None else self.erase(image)


def _rand_augment(policy: str, image_size: int, mean: Sequence[float]):  # noqa: ANN202  timm's own class
    from timm.data.auto_augment import rand_augment_transform

    fill = tuple(min(255, round(255 * value)) for value in (mean if len(mean) == 3 else [mean[0]] * 3))
    try:
        return rand_augment_transform(policy, {"translate_const": int(image_size * 0.45), "img_mean": fill})
    except (AssertionError, KeyError, ValueError) as error:
        raise StructuredInitError(
            f"rand_augment='{policy}' is not a RandAugment policy of timm: 'rand-m9-mstd0.5-inc1' is one"
        ) from error


def as_picture(image: NDArray[np.uint8] | Image.Image) -> Image.Image:
    """Return an image (H, W, C) of one or three channels as a picture."""
    if isinstance(image, Image.Image):
        return image
    return Image.fromarray(np.ascontiguousarray(image[..., 0] if image.shape[2] == 1 else image))


def as_array(image: NDArray[np.uint8] | Image.Image) -> NDArray[np.uint8]:
    """Return a picture as an array (H, W, C)."""
    array = np.asarray(image)
    return array if array.ndim == 3 else array[..., None]
