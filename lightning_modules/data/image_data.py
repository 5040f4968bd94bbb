"""`ImageData`: labelled images from the hub, a folder or the package, as training, validation and test batches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lightning_modules.data.augment import Augmentation
from lightning_modules.data.finding import Column, Kind
from lightning_modules.data.images import Decoder, ImageSet, channel_statistics, encoded, open_picture
from lightning_modules.data.labelled import LabelledData, stratified_parts
from lightning_modules.data.seeded import check_fractions
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    from datasets import Dataset

IN_MEMORY_BYTES = 2 * 2**30  # pixels of a part that takes less are decoded once, and kept


@cache
def _digits() -> Mapping[str, Dataset]:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels: 1,438 train, 359 test, always the same.

    Encoded once in a process, which may train several runs: a dataset is never changed in place.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features
    from datasets import Image as ImageFeature
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = np.round(pictures.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    names = [str(digit) for digit in range(10)]
    shares = {"test": 0.2, "train": 1.0}
    test, train = stratified_parts(labels.astype(np.int64), shares, seed=0, class_names=names, what="digits")
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=names)})
    splits = {
        name: Dataset.from_dict({"image": list(pictures[part]), "label": labels[part]}, features=features)
        for name, part in {"train": train, "test": test}.items()
    }
    return DatasetDict(splits)


IMAGES = Kind(
    Column("image", ("image", "img", "images"), lambda feature: type(feature).__name__ == "Image"),
    known=(
        "uoft-cs/cifar10",
        "uoft-cs/cifar100",
        "ufldl-stanford/svhn",
        "zh-plus/tiny-imagenet",
        "zalando-datasets/fashion_mnist",
        "ILSVRC/imagenet-1k",
    ),
    embedded={"digits": _digits},
    local="a folder of Parquet files (train-*.parquet, test-*.parquet) or of images (train/CLASS/NAME.png)",
)


class ImageData(LabelledData):
    """Images and classes; batches are (images (B, C, H, W) float32 normalized, classes (B,) int64).

    The order and the augmentation are functions of (seed, epoch, index): they do not depend on the number of workers,
    and leave the global random states alone.

    Args:
        name: a hub name (``uoft-cs/cifar10``), a folder of Parquet files, a folder of class folders
            (``train/cat/1.png``, and ``val/`` and ``test/`` beside ``train/``; without these, ``cat/1.png`` is the
            training part), or ``digits``. The folder that the environment variable STRUCTURED_INIT_DATA names is
            searched before the hub, by the last part of the name. A folder called ``digits`` is ``./digits``.
        image_column: found by its name or type where null.
        predict_folder: folder of images, without classes, that ``predict`` reads; the test part where null.
        batch_size: images per batch and process.
        image_size: side in pixels; where null, the shorter side of the first image.
        in_channels: 1 or 3; the dataset's own where null: 1 if 16 images, spread over train, are all gray.
        mean: per channel for pixels in [0, 1]; from the training part where null.
        std: per channel for pixels in [0, 1]; from the training part where null.
        flip: mirror left and right with probability 1/2.
        crop_padding: pad by so many pixels and crop back at a random place.
        crop_scale: smallest and largest share of the area for a random resized crop.
        rand_augment: timm's RandAugment policy, e.g. ``rand-m9-mstd0.5-inc1``.
        random_erasing: probability that a rectangle is replaced by noise.
        data: ``train_split``, ``val_split``, ``test_split``, ``fraction``, ``val_fraction``, ``test_fraction``,
            ``split_seed``, ``num_classes`` and others of :class:`LabelledData`; ``eval_batch_size``, ``num_workers``,
            and ``seed`` (of the order and the augmentation) of :class:`SeededData`.

    Raises:
        StructuredInitError: an argument out of its range; when the data is opened: no such dataset or column, a corrupt
            file or image, a class with too few images, a batch larger than the training part.
    """

    unit = "images"
    kind = IMAGES

    def __init__(
        self,
        name: str = "digits",
        image_column: str | None = None,
        predict_folder: str | None = None,
        batch_size: int = 128,
        image_size: int | None = None,
        in_channels: int | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        flip: bool = False,
        crop_padding: int = 0,
        crop_scale: list[float] | None = None,
        rand_augment: str | None = None,
        random_erasing: float = 0.0,
        **data: Any,
    ) -> None:
        super().__init__(name, batch_size=batch_size, **data)
        self.input_column = self.image_column = image_column
        self.predict_folder = predict_folder
        self._image_size, self._in_channels = image_size, in_channels
        self._mean, self._std = mean, std
        self._changes: dict[str, Any] = {"flip": flip, "crop_padding": crop_padding, "crop_scale": crop_scale}
        self._changes |= {"rand_augment": rand_augment, "random_erasing": random_erasing}
        check_whole("ImageData", null=True, image_size=image_size)
        check_whole("ImageData", least=0, crop_padding=crop_padding)
        if random_erasing:
            check_fractions(random_erasing=random_erasing)
        if in_channels not in (None, 1, 3):
            raise StructuredInitError(f"in_channels={in_channels} is neither 1 nor 3")
        if (mean is None) != (std is None):
            raise StructuredInitError("give both mean and std, or neither to compute them from the training part")

    @property
    def in_channels(self) -> int:
        """1 for grayscale, else 3; opens the dataset unless it was given."""
        return self._in_channels if self._in_channels is not None else self._first_picture[1]

    @property
    def image_size(self) -> int:
        """Side of the images in pixels; opens the dataset unless it was given."""
        return self._image_size if self._image_size is not None else self._first_picture[0]

    @property
    def mean(self) -> list[float]:
        """Mean of each channel for pixels in [0, 1]."""
        return self._statistics[0]

    @property
    def std(self) -> list[float]:
        """Standard deviation of each channel for pixels in [0, 1]."""
        return self._statistics[1]

    @cached_property
    def train_set(self) -> ImageSet:
        augmentation = Augmentation(self.image_size, mean=self.mean, **self._changes)
        rows = self.parts[1]
        labels = self.source.labels(self.train_split)[rows]
        scale = {"mean": self.mean, "std": self.std}
        return ImageSet(self._train_images, rows, labels, **scale, augmentation=augmentation, seed=self.seed)

    @cached_property
    def val_set(self) -> ImageSet | None:
        return self._evaluated(self.val_split, self.parts[0]) if self.val_fraction > 0 else None

    @cached_property
    def test_set(self) -> ImageSet:
        return self._evaluated(self.test_split, self.test_rows)

    @cached_property
    def predict_set(self) -> ImageSet:
        if self.predict_folder is None:
            return self.test_set
        from datasets import Dataset

        column, rows = self.source.input_column, np.arange(len(self.predicted))
        images = self._pixels(Dataset.from_dict({column: self.predicted}), self.predict_folder, rows)
        return ImageSet(images, rows, np.zeros_like(rows), mean=self.mean, std=self.std)

    @cached_property
    def predicted(self) -> list[str]:
        """The files of the folder that `predict` reads, which has to hold images, else the rows of the test split."""
        if self.predict_folder is None:
            return super().predicted
        known = Image.registered_extensions()
        files = sorted(path for path in Path(self.predict_folder).rglob("*") if path.suffix.lower() in known)
        if not files:
            raise StructuredInitError(f"predict_folder: there are no images in '{self.predict_folder}'")
        return [str(path) for path in files]

    def prepare_data(self) -> None:
        _ = self.source

    @cached_property
    def _first_picture(self) -> tuple[int, int]:
        """Shorter side of the first training image; 3 channels if one of 16, spread over all, has colours."""
        column = self.source.input_column
        split = encoded(self.source.split(self.train_split), column)
        rows = np.linspace(0, len(split) - 1, 16, dtype=int).tolist()
        pictures = [open_picture(split[row][column], row, self.train_split) for row in rows]
        gray = {each.mode for each in pictures} <= {"1", "L"}
        return min(pictures[0].size), 1 if gray else 3

    @cached_property
    def _train_images(self) -> NDArray[np.uint8] | Decoder:
        return self._pixels(self.source.split(self.train_split), self.train_split, self.parts[1])

    @cached_property
    def _statistics(self) -> tuple[list[float], list[float]]:
        if self._mean is not None and self._std is not None:
            if not len(self._mean) == len(self._std) == self.in_channels:
                raise StructuredInitError(
                    f"data.mean and data.std have {len(self._mean)} and {len(self._std)} values, but the images of "
                    f"'{self.name}' have {self.in_channels} channels: set both, or both to null to compute them"
                )
            return self._mean, self._std
        if isinstance(self._train_images, Decoder):
            raise StructuredInitError(
                f"the images of '{self.name}' take more than 2 GiB, too many to compute mean and std: give both"
            )
        return channel_statistics(self._train_images)

    def _pixels(self, pictures: Dataset, where: str, rows: NDArray[np.int64]) -> NDArray[np.uint8] | Decoder:
        """Return the pixels of the rows, or what reads them where there are too many."""
        sizes = {"channels": self.in_channels, "image_size": self.image_size}
        decoder = Decoder(pictures, self.source.input_column, where, **sizes)
        needed = len(rows) * self.image_size**2 * self.in_channels
        return decoder.all_fitted(rows) if needed < IN_MEMORY_BYTES else decoder

    def _evaluated(self, split: str, rows: NDArray[np.int64]) -> ImageSet:
        images = self._pixels(self.source.split(split), split, rows)
        return ImageSet(images, rows, self.source.labels(split)[rows], mean=self.mean, std=self.std)
