"""Images as arrays: decoding, fitting to a size, statistics, and the dataset that makes normalized batches.

Letters: N images, B batch, H height, W width, C channels.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lightning_modules.data.augment import Augmentation, as_array
from lightning_modules.data.seeded import BatchedSet, derive_seeds, epochs_and_indices, seed_here
from structured_init.undisturbed import own_random_state
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    import datasets


def encoded(split: datasets.Dataset, column: str) -> datasets.Dataset:
    """Return the column of images alone, not decoded: records ``{"bytes": …, "path": …}``."""
    from datasets import Image as ImageFeature

    return split.select_columns([column]).cast_column(column, ImageFeature(decode=False))


def open_picture(record: dict[str, Any], row: int, where: str, mode: str | None = None) -> Image.Image:
    """Return the picture in a record ``{"bytes": …, "path": …}``, or an error that says which file or row is bad.

    It is converted to ``mode``, if given; one of more than 8 bits, which would be clipped, is refused.
    """
    try:
        picture = Image.open(io.BytesIO(record["bytes"]) if record["bytes"] is not None else record["path"])
        picture.load()
        if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
            raise ValueError(f"its pixels (mode {picture.mode}) have more than 8 bits: convert it to 8 bits")
        return picture.convert(mode) if mode else picture
    except Exception as error:  # each format has its own errors
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        which = f"in row {row} of '{where}'" if record["bytes"] is not None else f"'{record['path']}'"
        raise StructuredInitError(f"the image {which} cannot be read: {reason}") from error


class Decoder:
    """Decodes the images of one split, by row; ``where`` names it in errors. The sizes are those of `ImageData`."""

    def __init__(self, split: datasets.Dataset, column: str, where: str, *, channels: int, image_size: int) -> None:
        self.column, self.where, self.channels, self.image_size = column, where, channels, image_size
        self.encoded = encoded(split, column)

    def picture(self, row: int) -> Image.Image:
        """Return one image as it is stored."""
        return self._open(self.encoded[row][self.column], row)

    def fitted(self, row: int) -> NDArray[np.uint8]:
        """Return one image at the size wanted, (H, W, C)."""
        return self._fit(self.picture(row))

    def all_fitted(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return many images at the size wanted, (N, H, W, C)."""
        images = np.empty((len(rows), self.image_size, self.image_size, self.channels), dtype=np.uint8)
        for start in range(0, len(rows), 1024):  # whole blocks: one row at a time costs more than its decoding
            block = rows[start : start + 1024]
            for i, record in enumerate(self.encoded[block][self.column]):
                images[start + i] = self._fit(self._open(record, int(block[i])))
        return images

    def _open(self, record: dict[str, Any], row: int) -> Image.Image:
        return open_picture(record, row, self.where, "L" if self.channels == 1 else "RGB")

    def _fit(self, picture: Image.Image) -> NDArray[np.uint8]:
        """Return a picture with its shorter side at the size wanted, and of the longer side the middle."""
        side = self.image_size
        if picture.size != (side, side):
            scale = side / min(picture.size)
            width, height = (max(side, round(length * scale)) for length in picture.size)
            left, top = (width - side) // 2, (height - side) // 2
            resized = picture.resize((width, height), Image.Resampling.BICUBIC)
            picture = resized.crop((left, top, left + side, top + side))
        return as_array(picture)


def channel_statistics(images: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of images (N, H, W, C), for pixels in [0, 1].

    The sums are whole numbers, so the result does not depend on the order or the number of threads.
    """
    total = np.zeros(images.shape[-1], dtype=np.int64)
    squares = np.zeros_like(total)
    for start in range(0, len(images), 1024):
        block = images[start : start + 1024].astype(np.int64)
        total += block.sum(axis=(0, 1, 2))
        squares += (block * block).sum(axis=(0, 1, 2))
    count = images[..., 0].size
    mean = total / count
    std = np.sqrt(squares / count - mean * mean)
    return (mean / 255).tolist(), (np.maximum(std, 1.0) / 255).tolist()


class ImageSet(BatchedSet):
    """Normalized images and their classes (N,); a sample is a pure function of (seed, epoch, index).

    The images are all of them, (N, H, W, C), shared by the workers; or a decoder that reads them one by one, of which
    ``rows`` (N,) are the rows. Mean and std are per channel, for pixels in [0, 1]; the seed is of the augmentation.
    """

    def __init__(
        self,
        images: NDArray[np.uint8] | Decoder,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        self.images = images
        self.rows = rows
        self.labels = torch.from_numpy(labels)
        self.mean = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)
        self.augmentation = augmentation if augmentation is not None and augmentation.active else None
        self.seed = seed

    def without_augmentation(self) -> ImageSet:
        """Return the same images and classes, as they are stored."""
        plain = copy.copy(self)
        plain.augmentation = None
        return plain

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return a batch, images (B, C, H, W) float32 and classes (B,) int64."""
        epochs, indices = epochs_and_indices(keys)
        pictures = [self._read(index) for index in indices.tolist()]
        if self.augmentation is None:
            return self._normalize(np.stack(pictures)), self.labels[indices]
        seeds = derive_seeds(self.seed, epochs, indices).tolist()
        changed = []
        with own_random_state(0):  # each image has a seed of its own
            for seed, picture in zip(seeds, pictures, strict=True):
                seed_here(seed)
                changed.append(self.augmentation.pixels(picture))
            images = self._normalize(np.stack(changed))
            for seed, image in zip(seeds, images, strict=True):
                seed_here(seed ^ 1)  # not the stream again that the crop was drawn from
                self.augmentation.normalized(image)
        return images, self.labels[indices]

    def _read(self, index: int) -> NDArray[np.uint8] | Image.Image:
        """Return one image at its size; the whole picture where a random resized crop is taken from it."""
        if not isinstance(self.images, Decoder):
            return self.images[index]
        row = int(self.rows[index])
        cropped = self.augmentation is not None and self.augmentation.resized_crop is not None
        return self.images.picture(row) if cropped else self.images.fitted(row)

    def _normalize(self, batch: NDArray[np.uint8]) -> Tensor:
        images = torch.from_numpy(batch).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return images.div_(255).sub_(self.mean).div_(self.std)
