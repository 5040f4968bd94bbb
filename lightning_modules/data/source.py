"""`Source`: a labelled dataset before anything is decoded, and which of its columns is what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.finding import Kind, open_splits
from lightning_modules.data.split import stratified_parts
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


@dataclass
class Source:
    """A labelled dataset before anything is decoded.

    Attributes:
        name: as the user wrote it.
        splits: the splits by name.
        input_column: name of the column of images or texts.
        label_column: name of the column of classes.
    """

    name: str
    splits: Mapping[str, Dataset]
    input_column: str
    label_column: str

    def split(self, name: str) -> Dataset:
        """Return a split, or an error that lists those that there are."""
        if name not in self.splits:
            raise StructuredInitError(f"dataset '{self.name}' has no split '{name}': {nearest(name, self.splits)}")
        return self.splits[name]

    @cached_property
    def class_names(self) -> list[str]:
        """Names of the classes: the hub's where it gives them, else the labels that occur in train."""
        first = self.splits.get("train", next(iter(self.splits.values())))
        names = getattr(first.features[self.label_column], "names", None)
        if names:
            return list(names)
        values = np.asarray(_column(first, self.label_column))
        if values.dtype.kind in "iu":
            return [str(value) for value in range(int(values.max()) + 1)]
        return sorted({str(value) for value in values})

    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the class of each sample of a split, (N,).

        Raises:
            StructuredInitError: a label lies outside the classes, as where the hub hides a test split's labels.
        """
        values = np.asarray(_column(self.split(split), self.label_column))
        if values.dtype.kind not in "iu":
            number = {name: i for i, name in enumerate(self.class_names)}
            values = np.array([number.get(str(value), -1) for value in values])
        wrong = np.flatnonzero((values < 0) | (values >= len(self.class_names)))
        if len(wrong):
            raise StructuredInitError(
                f"row {wrong[0]} of '{split}' in '{self.name}' has no label among the {len(self.class_names)} classes"
            )
        return values.astype(np.int64)


def open_source(
    name: str, config: str | None, input_column: str | None, label_column: str | None, kind: Kind | None = None
) -> Source:
    """Find a dataset and its two columns.

    Args:
        name: an embedded dataset, a Parquet file or a folder of them, or a hub name.
        config: the hub's configuration, e.g. ``cropped_digits``.
        input_column: found by its name or type where None.
        label_column: found by its name or type where None.
        kind: of the samples; images where None.

    Raises:
        StructuredInitError: no such dataset, a corrupt file, no such column.
    """
    kind = kind or IMAGES
    splits = open_splits(name, config, kind)
    features = next(iter(splits.values())).features
    return Source(
        name,
        splits,
        find_column(name, kind.what, input_column, kind.columns, features, kind.is_one),
        find_column(
            name, "label", label_column, LABEL_COLUMNS, features, lambda kind: type(kind).__name__ == "ClassLabel"
        ),
    )


@cache
def _digits() -> Mapping[str, Dataset]:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels: 1,438 train, 359 test, always the same.

    Encoded once in a process, which may train several runs: a dataset is never changed in place.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = np.round(pictures.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    names = [str(digit) for digit in range(10)]
    test, train = stratified_parts(labels.astype(np.int64), [0.2, 1.0], seed=0, class_names=names, what="digits")
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    splits = {
        name: Dataset.from_dict({"image": list(pictures[part]), "label": labels[part]}, features=features)
        for name, part in {"train": train, "test": test}.items()
    }
    return DatasetDict(splits)


def find_column(
    name: str,
    what: str,
    given: str | None,
    usual: Sequence[str],
    features: Mapping[str, Any],
    is_one: Callable[[Any], bool],
) -> str:
    """Return the column that the user named, else the one with a usual name, else the first of the right type.

    Raises:
        StructuredInitError: there is none.
    """
    if given is not None:
        if given not in features:
            raise StructuredInitError(f"dataset '{name}' has no column '{given}': {nearest(given, features)}")
        return given
    typed = [column for column, feature in features.items() if is_one(feature)]
    candidates = [column for column in usual if column in features] + typed
    if not candidates:
        raise StructuredInitError(
            f"dataset '{name}' has no column that looks like the {what}: name it with {what}_column, "
            f"{nearest('', features)}"
        )
    return candidates[0]


def _column(split: Dataset, column: str) -> NDArray[np.generic]:
    return split.select_columns([column]).with_format("numpy")[:][column]


IMAGES = Kind(
    "image",
    columns=("image", "img", "images"),
    is_one=lambda feature: type(feature).__name__ == "Image",
    known=(
        "uoft-cs/cifar10",
        "uoft-cs/cifar100",
        "ufldl-stanford/svhn",
        "zh-plus/tiny-imagenet",
        "zalando-datasets/fashion_mnist",
        "ILSVRC/imagenet-1k",
    ),
    embedded={"digits": _digits},
)
