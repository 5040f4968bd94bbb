"""`SeededData`: what every datamodule shares: one seed for all ranks, and loaders whose order is a function of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_modules.data.loader import EpochSampler, ResumableLoader
from structured_init.errors import StructuredInitError


class SeededData(L.LightningDataModule, ABC):
    """Datasets of three parts whose order is a function of (seed, epoch), whatever the number of workers.

    Args:
        name: of the dataset, for errors.
        batch_size: samples per batch and process.
        eval_batch_size: samples per batch for validation and test; ``batch_size`` where null.
        seed: of the order; ``None`` takes the seed of ``seed_everything``, or 0.
        num_workers: processes that load, per loader.

    Raises:
        StructuredInitError: an argument out of its range.
    """

    unit = "samples"

    def __init__(
        self, name: str, *, batch_size: int, eval_batch_size: int | None, seed: int | None, num_workers: int
    ) -> None:
        super().__init__()
        if not isinstance(name, str | os.PathLike):
            raise StructuredInitError(f"name must be that of a dataset or a folder, such as 'digits', got {name!r}")
        for argument, value in (("batch_size", batch_size), ("num_workers", num_workers)):
            check_type(argument, value, int)
        for argument, value in (("eval_batch_size", eval_batch_size), ("seed", seed)):
            check_type(argument, value, int, type(None))
        if seed is not None and seed < 0:
            raise StructuredInitError(f"seed={seed} is negative: a seed must be a whole number from 0")
        self.name = name
        self.batch_size, self.eval_batch_size = batch_size, batch_size if eval_batch_size is None else eval_batch_size
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.num_workers = num_workers
        if min(self.batch_size, self.eval_batch_size) < 1 or self.num_workers < 0:
            raise StructuredInitError("batch_size must be at least 1 and num_workers at least 0")

    def __str__(self) -> str:
        """Return class and name: Lightning's own would open every part, and the command line asks for it."""
        return f"{type(self).__name__}('{self.name}')"

    @property
    @abstractmethod
    def train_set(self) -> Any:
        """The training part."""

    @property
    @abstractmethod
    def val_set(self) -> Dataset[Any] | None:
        """The validation part; ``None`` where there is none."""

    @property
    @abstractmethod
    def test_set(self) -> Dataset[Any]:
        """The test part."""

    def train_dataloader(self) -> Any:
        """Full batches in a new order in each epoch."""
        sampler = self._sampler(len(self.train_set), shuffle=True)
        if len(sampler) < self.batch_size:
            raise StructuredInitError(
                f"batch_size={self.batch_size} is larger than the training part of '{self.name}', "
                f"which has {len(sampler)} {self.unit} per process"
            )
        return ResumableLoader(
            self.train_set, batch_size=self.batch_size, sampler=sampler, drop_last=True, **self._loader_arguments()
        )

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """All validation samples in order; empty without a validation part."""
        return self._ordered(self.val_set) if self.val_set is not None else []

    def test_dataloader(self) -> DataLoader[Any]:
        """All test samples in order."""
        return self._ordered(self.test_set)

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test samples, to predict."""
        return self._ordered(self.test_set)

    def share_seed(self) -> None:
        """Take rank 0's seed: ranks with global seeds of their own must still share one order."""
        if self.trainer is not None:
            self.seed = self.trainer.strategy.broadcast(self.seed)

    def _ordered(self, dataset: Any) -> DataLoader[Any]:
        sampler = self._sampler(len(dataset), shuffle=False)
        # By name: Lightning builds the loader anew to predict, from the names of its arguments.
        return DataLoader(dataset, batch_size=self.eval_batch_size, sampler=sampler, **self._loader_arguments())

    def _sampler(self, size: int, *, shuffle: bool) -> EpochSampler:
        world, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer is not None else (1, 0)
        return EpochSampler(size, shuffle=shuffle, seed=self.seed, num_replicas=world, rank=rank)

    def _loader_arguments(self) -> dict[str, Any]:
        return {
            "collate_fn": as_it_is,
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            "generator": torch.Generator(),  # else each iterator would draw from the global one
        }


def as_it_is(batch: Any) -> Any:
    """Collate nothing: the datasets' ``__getitems__`` make the batch already."""
    return batch


def check_type(name: str, value: object, *kinds: type) -> None:
    """Raise an error for an argument of a wrong type, such as a number given as text; true is no number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        words = {int: "a whole number", float: "a number", type(None): "null"}
        wanted = " or ".join(words.get(kind, kind.__name__) for kind in kinds if kind is not int or float not in kinds)
        raise StructuredInitError(f"{name}={value!r} is not {wanted}")


def check_fractions(**shares: float) -> None:
    """Raise an error for a share outside (0, 1]."""
    for name, value in shares.items():
        check_type(name, value, int, float)
        if not 0 < value <= 1:
            raise StructuredInitError(f"{name}={value} is not in (0, 1]")


def check_carved(**shares: float) -> None:
    """Raise an error for a share that is carved out of train and lies outside [0, 1), or for all of them together."""
    words = {"val_fraction": "validation", "test_fraction": "test"}
    for name, value in shares.items():
        check_type(name, value, int, float)
        if not 0 <= value < 1:
            raise StructuredInitError(f"{name}={value} is not in [0, 1); 0 means no {words[name]}")
    if sum(shares.values()) >= 1:
        raise StructuredInitError(f"{' and '.join(shares)} leave nothing to train on: their sum is less than 1")
