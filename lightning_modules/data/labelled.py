"""What datasets of images and of texts with classes share: `Source`, stratified parts, and `LabelledData`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.finding import VALIDATION, Kind, find_column, open_splits, parquet_files
from lightning_modules.data.seeded import SeededData, check_carved, check_fractions
from structured_init.util.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset


def stratified_counts(class_counts: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return how many of each class, (C,), make ``fraction`` of all: proportional, rounded by the largest remainder."""
    exact = class_counts * fraction
    counts = np.floor(exact + 1e-9).astype(np.int64)
    missing = round(float(class_counts.sum() * fraction)) - int(counts.sum())
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: max(0, missing)]] += 1
    return counts


def stratified_parts(
    labels: NDArray[np.int64], fractions: Mapping[str, float], *, seed: int, class_names: Sequence[str], what: str
) -> list[NDArray[np.int64]]:
    """Draw disjoint stratified parts, the first one first; the last takes what is left where its share is not there.

    The draw is nested: with the same seed and the same parts before it, a smaller last part is contained in a larger.
    A part is sorted indices into ``labels`` (N,); a fraction of 0 gives an empty one. A class with too few samples for
    every other part to have one is refused; names, those of the options too, are for the error.
    """
    rng = np.random.default_rng(seed)
    counts = np.bincount(labels, minlength=len(class_names))
    wanted = [stratified_counts(counts, fraction) for fraction in fractions.values()]
    wanted[-1] = np.minimum(wanted[-1], counts - sum(wanted[:-1], start=np.zeros_like(counts)))
    parts: list[list[NDArray[np.int64]]] = [[] for _ in fractions]
    for label in np.flatnonzero(counts):
        members = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.cumsum([0, *(int(part[label]) for part in wanted)])
        for part, (option, fraction), start, end in zip(parts, fractions.items(), bounds, bounds[1:], strict=False):
            if fraction > 0 and end <= start:
                raise StructuredInitError(
                    f"class '{class_names[label]}' has {len(members)} sample{'s' * (len(members) != 1)} in '{what}': "
                    f"too few for --data.{option} {fraction:g}, which would have none of them"
                )
            part.append(members[start:end])
    return [np.sort(np.concatenate(part)) if part else np.empty(0, dtype=np.int64) for part in parts]


LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


@dataclass
class Source:
    """A labelled dataset before anything is decoded: its splits by name, and its two columns."""

    name: str
    splits: Mapping[str, Dataset]
    input_column: str
    label_column: str

    def split(self, name: str) -> Dataset:
        """Return a split, or an error that lists those that there are."""
        if name not in self.splits:
            raise StructuredInitError(f"dataset '{self.name}' has no split '{name}': {nearest(name, self.splits)}")
        return self.splits[name]

    def called(self, name: str) -> str:
        """Return what a split is called here: ``datasets`` calls a folder ``val`` ``validation``."""
        if name in self.splits or name not in VALIDATION:
            return name
        return next((each for each in VALIDATION if each in self.splits), name)

    @cached_property
    def class_names(self) -> list[str]:
        """Names of the classes: the hub's where it gives them, else the labels that occur in train."""
        first = "train" if "train" in self.splits else next(iter(self.splits))
        names = getattr(self.splits[first].features[self.label_column], "names", None)
        if names:
            return list(names)
        values = self._values(first)
        if values.dtype.kind in "iu":
            return [str(value) for value in range(int(values.max()) + 1)]
        return [str(value) for value in sorted({*values.tolist()})]

    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the class of each sample, (N,); refuse labels outside the classes, as where the hub hides them."""
        values = self._values(split)
        if values.dtype.kind not in "iu":
            number = {name: i for i, name in enumerate(self.class_names)}
            values = np.array([number.get(str(value), -1) for value in values])
        wrong = np.flatnonzero((values < 0) | (values >= len(self.class_names)))
        if len(wrong):
            raise StructuredInitError(
                f"row {wrong[0]} of '{split}' in '{self.name}' has no label among the {len(self.class_names)} classes"
            )
        return values.astype(np.int64)

    def _values(self, split: str) -> NDArray[np.generic]:
        """Return the labels of a split as they are stored, (N,); refuse lists of them, and one that is missing."""
        column = self.label_column
        values = np.asarray(self.split(split).select_columns([column]).with_format("numpy")[:][column])
        if values.ndim == 1 and values.dtype.kind in "iu":
            return values
        if any(isinstance(each, np.ndarray) for each in values):
            raise StructuredInitError(f"column '{column}' of '{self.name}' holds lists, not one class for each row")
        rows = values.tolist()
        if missing := [row for row, value in enumerate(rows) if value is None or value != value]:  # NaN
            raise StructuredInitError(f"row {missing[0]} of '{split}' in '{self.name}' has no label")
        return np.array([int(each) if values.dtype.kind == "f" and each % 1 == 0 else each for each in rows], object)


class LabelledData(SeededData):
    """A dataset with classes. Only `test` reads the test split.

    The validation part is a share of train. Of class folders in ``train/``, ``val/`` and ``test/`` it is ``val/``.

    Args:
        name: of the dataset.
        config: the hub's configuration of the dataset.
        label_column: found by its name or type where null.
        train_split: split to train on.
        val_split: split to validate on, whole; where null, ``val/`` of class folders, else a share of the train split.
        test_split: split to test on; where null, ``test``, else ``validation``.
        num_classes: checked against the dataset; saves opening it to know, where that is expensive.
        fraction: share of the train split to train on, in (0, 1], stratified; validation samples are not among them.
        val_fraction: share of the train split to validate on, in [0, 1), stratified; 0 for no validation at all.
        test_fraction: share of the test split, in (0, 1], stratified, the same for every seed.
        split_seed: of the parts, which runs of different seeds share.
        data: of :class:`SeededData`.

    Raises:
        StructuredInitError: an argument out of its range.
    """

    kind: ClassVar[Kind]

    def __init__(
        self,
        name: str,
        config: str | None = None,
        label_column: str | None = None,
        train_split: str = "train",
        val_split: str | None = None,
        test_split: str | None = None,
        num_classes: int | None = None,
        fraction: float = 1.0,
        val_fraction: float = 0.1,
        test_fraction: float = 1.0,
        split_seed: int = 0,
        **data: Any,
    ) -> None:
        super().__init__(name, **data)
        self.config, self.label_column, self.input_column = config, label_column, None
        self.train_split, self._val_split, self._test_split = train_split, val_split, test_split
        self._num_classes = num_classes
        self.fraction, self.val_fraction, self.test_fraction = fraction, val_fraction, test_fraction
        self.split_seed = split_seed
        check_fractions(fraction=fraction, test_fraction=test_fraction)
        check_carved(val_fraction=val_fraction)

    @property
    def num_classes(self) -> int:
        """Number of classes; opens the dataset unless it was given."""
        return self._num_classes if self._num_classes is not None else len(self.source.class_names)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return self.source.class_names

    @property
    def val_split(self) -> str:
        """Name of the split to validate on; that of training where a share of it is validated on."""
        if self._val_split:
            return self.source.called(self._val_split)
        usual = self.source.called(VALIDATION[0])
        return usual if self._of_files and {usual, "test"} <= {*self.source.splits} else self.train_split

    @property
    def _of_files(self) -> bool:
        return Path(self.name).is_dir() and not parquet_files(Path(self.name), self.config)

    @property
    def test_split(self) -> str:
        """Name of the split to test on."""
        usual = next((name for name in ("test", *VALIDATION) if name in self.source.splits), "test")
        return self.source.called(self._test_split or usual)

    @property
    def has_test(self) -> bool:
        """Whether there is a split to test on; a named one has to be there; only a local folder is opened to see."""
        if not Path(self.name).is_dir():
            return True
        if self._test_split:
            self.source.split(self.test_split)
        return self.test_split in self.source.splits

    @property
    def remark(self) -> str:
        """What to say of a local folder without ``test/`` before it is compared on."""
        if not Path(self.name).is_dir() or self._test_split or self.test_split not in VALIDATION:
            return ""
        both = "validated on as well, as you ask: choose nothing on it"
        rest = both if self.val_split == self.test_split else "a share of train/ is validated on"
        return f"data: '{self.name}' has no test/: its split '{self.test_split}' is tested on, and {rest}"

    @cached_property
    def source(self) -> Source:
        """The dataset, nothing of it decoded or tokenized."""
        kind, splits = self.kind, open_splits(self.name, self.config, self.kind)
        features = next(iter(splits.values())).features
        given = find_column(self.name, kind.what, self.input_column, kind.columns, features, kind.is_one)
        is_class = lambda feature: type(feature).__name__ == "ClassLabel"  # noqa: E731
        label = find_column(self.name, "label", self.label_column, LABEL_COLUMNS, features, is_class)
        source = Source(self.name, splits, given, label)
        if self._num_classes is not None and self._num_classes != len(source.class_names):
            raise StructuredInitError(
                f"num_classes={self._num_classes} does not match dataset '{self.name}', "
                f"which has {len(source.class_names)} classes"
            )
        return source

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """Rows of the split to validate on, and rows of the train split to train on."""
        if self.val_split != self.train_split:
            whole = np.arange(len(self.source.labels(self.val_split)))
            return [whole, *self._stratify(self.train_split, {"fraction": self.fraction}, seed=self.split_seed)]
        fractions = {"val_fraction": self.val_fraction, "fraction": self.fraction}
        return self._stratify(self.train_split, fractions, seed=self.split_seed)

    @cached_property
    def test_rows(self) -> NDArray[np.int64]:
        """Rows of the test split to test on."""
        return self._stratify(self.test_split, {"test_fraction": self.test_fraction}, seed=0)[0]

    @property
    def predicted(self) -> list[str]:
        """A name for each sample that `predict` reads: its row of the test split."""
        return [str(row) for row in self.test_rows]

    def _stratify(self, split: str, fractions: Mapping[str, float], seed: int) -> list[NDArray[np.int64]]:
        labels = self.source.labels(split)
        return stratified_parts(labels, fractions, seed=seed, class_names=self.source.class_names, what=split)
