"""What datasets of images and of texts with classes share: `Source`, stratified parts, and `LabelledData`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.finding import Column, Kind, open_splits, usual_name
from lightning_modules.data.seeded import SeededData, check_fractions
from structured_init.util.arguments import check_share
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
    held = np.bincount(labels, minlength=len(class_names))  # of each class
    wanted = [stratified_counts(held, fraction) for fraction in fractions.values()]
    wanted[-1] = np.minimum(wanted[-1], held - sum(wanted[:-1], start=np.zeros_like(held)))
    drawn = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(class_names))]
    parts = []
    first = np.zeros_like(held)
    for (option, fraction), counts in zip(fractions.items(), wanted, strict=True):
        lacking = np.flatnonzero((counts == 0) & (held > 0))
        if fraction > 0 and len(lacking):
            raise StructuredInitError(
                f"class '{class_names[lacking[0]]}' has too few samples in '{what}' ({held[lacking[0]]}) for "
                f"--data.{option} {fraction:g}, which would have none of them"
            )
        members = [of_class[start : start + count] for of_class, start, count in zip(drawn, first, counts, strict=True)]
        parts.append(np.sort(np.concatenate(members)))
        first = first + counts
    return parts


LABEL = Column(
    "label",
    ("label", "labels", "fine_label", "class", "target"),
    lambda feature: type(feature).__name__ == "ClassLabel",
)


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
        return sorted({str(value) for value in values})

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
        """Return the labels of a split as they are stored, (N,): whole numbers or texts."""
        column = self.label_column
        values = np.asarray(self.split(split).select_columns([column]).with_format("numpy")[:][column])
        if values.ndim != 1 or values.dtype.kind not in "iubU":
            raise StructuredInitError(
                f"column '{column}' of '{split}' in '{self.name}' is no class in every row: a whole number or a text"
            )
        return values


class LabelledData(SeededData):
    """A dataset with classes. Only `test` reads the test split.

    The validation part is the split ``validation`` where there is one beside that to test on, else a share of train.

    Args:
        name: of the dataset.
        config: the hub's configuration of the dataset.
        label_column: found by its name or type where null.
        train_split: split to train on.
        val_split: split to validate on, whole; the train split gives a share of it; null as said above.
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
        check_share(type(self).__name__, val_fraction=val_fraction)

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
            return usual_name(self._val_split)
        is_free = "validation" in self.source.splits and self.test_split != "validation"
        return "validation" if is_free else self.train_split

    @property
    def test_split(self) -> str:
        """Name of the split to test on."""
        if self._test_split:
            return usual_name(self._test_split)
        others = "validation" in self.source.splits and "test" not in self.source.splits
        return "validation" if others else "test"

    @property
    def has_test(self) -> bool:
        """Whether there is a split to test on; only a local folder is opened to see."""
        return not Path(self.name).is_dir() or self.test_split in self.source.splits

    @property
    def remark(self) -> str:
        """What to say before a local folder without ``test`` is compared on; an empty text for others."""
        if self._test_split or not Path(self.name).is_dir() or self.test_split == "test":
            return ""
        return f"data: '{self.name}' has no test split: its split 'validation' is tested on"

    @cached_property
    def source(self) -> Source:
        """The dataset, nothing of it decoded or tokenized."""
        splits = open_splits(self.name, self.config, self.kind)
        features = next(iter(splits.values())).features
        inputs = self.kind.column.name_in(self.name, features, self.input_column)
        label = LABEL.name_in(self.name, features, self.label_column)
        source = Source(self.name, splits, inputs, label)
        if self._num_classes is not None and self._num_classes != len(source.class_names):
            raise StructuredInitError(
                f"num_classes={self._num_classes} does not match dataset '{self.name}', "
                f"which has {len(source.class_names)} classes: give --data.num_classes {len(source.class_names)}"
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
