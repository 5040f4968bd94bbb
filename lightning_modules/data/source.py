"""Where a dataset comes from: the hub, a folder of Parquet, or inside the package; and which of its columns is what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.split import stratified_parts
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

FOLDER_VARIABLE = "STRUCTURED_INIT_DATA"
KNOWN = (
    "digits",
    "uoft-cs/cifar10",
    "uoft-cs/cifar100",
    "ufldl-stanford/svhn",
    "zh-plus/tiny-imagenet",
    "zalando-datasets/fashion_mnist",
    "ILSVRC/imagenet-1k",
)
IMAGE_COLUMNS = ("image", "img", "images")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


@dataclass
class Source:
    """A labelled image dataset before anything is decoded.

    Attributes:
        name: as the user wrote it.
        splits: the splits by name.
        image_column: name of the column of images.
        label_column: name of the column of classes.
    """

    name: str
    splits: Mapping[str, Dataset]
    image_column: str
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
        """Return the class of each image of a split, (N,).

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


def open_source(name: str, config: str | None, image_column: str | None, label_column: str | None) -> Source:
    """Find a dataset and its two columns.

    Args:
        name: ``digits``, a folder of Parquet files, or a hub name.
        config: the hub's configuration, e.g. ``cropped_digits``.
        image_column: found by its name or type where None.
        label_column: found by its name or type where None.

    Raises:
        StructuredInitError: no such dataset, a corrupt file, no such column.
    """
    splits = _splits(name, config)
    features = next(iter(splits.values())).features
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    return Source(
        name,
        splits,
        _find(name, "image", image_column, IMAGE_COLUMNS, kinds, "Image"),
        _find(name, "label", label_column, LABEL_COLUMNS, kinds, "ClassLabel"),
    )


def _splits(name: str, config: str | None) -> Mapping[str, Dataset]:
    if name == "digits":
        return _digits()
    shelf = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(name).expanduser(), *([Path(shelf).expanduser() / name.rsplit("/", 1)[-1]] if shelf else [])]
    for folder in folders:
        if folder.is_dir() and (files := _parquet_files(folder, config)):
            return _from_parquet(files)
    return _from_hub(name, config, shelf)


def _parquet_files(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the files of each split, ``train-00000-of-00001.parquet``, in the folder or in one as the hub lays it."""
    places = [folder / config] if config and (folder / config).is_dir() else [folder, folder / "data"]
    for place in [*places, *sorted(path for path in folder.iterdir() if path.is_dir())]:
        files: dict[str, list[str]] = {}
        for file in sorted(place.glob("*.parquet")):
            files.setdefault(file.stem.split("-")[0], []).append(str(file))
        if files:
            return files
    return {}


def _from_parquet(files: dict[str, list[str]]) -> Mapping[str, Dataset]:
    import pyarrow.parquet
    from datasets import load_dataset

    everything = [file for group in files.values() for file in group]
    _check_each(everything, pyarrow.parquet.ParquetFile)  # the footers: cheap
    try:
        return load_dataset("parquet", data_files=files)
    except Exception as error:
        _check_each(everything, pyarrow.parquet.read_table)  # the pages: only now, to say which
        raise StructuredInitError(
            f"the Parquet files of '{Path(everything[0]).parent}' do not fit together: {_line(error)}"
        ) from error


def _check_each(files: Sequence[str], read) -> None:  # noqa: ANN001  a reader of pyarrow
    for file in files:
        try:
            read(file)
        except Exception as error:
            raise StructuredInitError(f"'{file}' is not a readable Parquet file: {_line(error)}") from error


def _from_hub(name: str, config: str | None, shelf: str | None) -> Mapping[str, Dataset]:
    from datasets import DatasetDict, load_dataset
    from datasets.exceptions import DatasetsError

    try:
        found = load_dataset(name, config)
    except (DatasetsError, OSError, ValueError) as error:
        local = [path.name for path in Path(shelf).iterdir() if path.is_dir()] if shelf and Path(shelf).is_dir() else []
        raise StructuredInitError(
            f"no dataset '{name}' ({_line(error)}): give a name of the Hugging Face hub, or a folder of Parquet files "
            f"(train-*.parquet, test-*.parquet; {FOLDER_VARIABLE} names the folder that holds such folders), or "
            f"'digits', which needs no download; {nearest(name, [*KNOWN, *local])}"
        ) from error
    assert isinstance(found, DatasetDict)
    return found


def _digits() -> Mapping[str, Dataset]:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels: 1,438 train, 359 test, always the same."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = np.round(pictures.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    names = [str(digit) for digit in range(10)]
    test, train = stratified_parts(labels.astype(np.int64), [0.2, 1.0], seed=0, class_names=names, what="digits")
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    return DatasetDict(
        {
            name: Dataset.from_dict({"image": list(pictures[part]), "label": labels[part]}, features=features)
            for name, part in {"train": train, "test": test}.items()
        }
    )


def _find(name: str, what: str, given: str | None, usual: Sequence[str], kinds: Mapping[str, str], feature: str) -> str:
    if given is not None:
        if given not in kinds:
            raise StructuredInitError(f"dataset '{name}' has no column '{given}': {nearest(given, kinds)}")
        return given
    typed = [column for column, kind in kinds.items() if kind == feature]
    candidates = [column for column in usual if column in kinds] + typed
    if not candidates:
        raise StructuredInitError(
            f"dataset '{name}' has no column that looks like the {what}: name it with {what}_column, "
            f"{nearest('', kinds)}"
        )
    return candidates[0]


def _column(split: Dataset, column: str) -> NDArray[np.generic]:
    return split.select_columns([column]).with_format("numpy")[:][column]


def _line(error: BaseException) -> str:
    """Return the first line of the deepest cause, which says what happened."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
