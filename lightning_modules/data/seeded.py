"""`SeededData`: what every datamodule shares: one seed for all ranks, and loaders whose order is a function of it.

torchdata's ``StatefulDataLoader`` (0.11) resumes in the middle of an epoch too, but with the same number of worker
processes only: a state saved with 2 workers is refused with 0 and with 1. Here a batch is a function of its number, so
the state is one number, and a run may go on with any number of workers.
"""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import ArrayLike, NDArray
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive_seeds(*parts: ArrayLike) -> NDArray[np.uint64]:
    """Return one 64-bit seed per element of the broadcast ``parts``, e.g. ``derive_seeds(seed, epoch, indices)``.

    Parts are whole numbers or arrays of them; the result is at least one-dimensional. Sums such as ``seed + epoch``
    would give seed 0 in epoch 1 the order of seed 1 in epoch 0; a hash does not.

    Source: splitmix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = state + np.atleast_1d(np.asarray(part, dtype=np.int64)).view(np.uint64) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def seed_here(seed: int) -> None:
    """Seed python, numpy and torch's CPU generator, and leave the accelerators' generators alone."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


class BatchedSet(Dataset[Any]):
    """Makes whole batches of samples, each a function of (seed, epoch, index); a subclass has ``__getitems__``.

    A key is what :class:`EpochSampler` yields; an index alone belongs to epoch 0.
    """

    def __getitem__(self, key: int | tuple[int, int]) -> Any:
        return tree_map(lambda values: values[0], self.__getitems__([key]))


def epochs_and_indices(keys: Sequence[int | tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the epoch and the index of every key of a batch, (B,) each."""
    epochs, indices = np.array([key if isinstance(key, tuple) else (0, key) for key in keys], dtype=np.int64).T
    return epochs, indices


class EpochSampler(DistributedSampler[Any]):
    """Yields ``(epoch, index)``, so that a dataset can make a sample a pure function of (seed, epoch, index).

    It is a `DistributedSampler` because Lightning then keeps it as it is under DDP and calls its `set_epoch`. Shuffled,
    every rank gets the same number of samples: what does not divide is left out, another part of it in each epoch.
    In order, nothing is left out and nothing is repeated, so that a metric over all ranks counts each sample once.

    Attributes:
        start: number of this rank's samples to leave out at the beginning; the length does not change.
    """

    def __init__(self, size: int, *, shuffle: bool, seed: int = 0, num_replicas: int = 1, rank: int = 0) -> None:
        super().__init__(
            range(size), num_replicas=num_replicas, rank=rank, shuffle=shuffle, seed=seed, drop_last=shuffle
        )
        self.start = 0
        if not shuffle:
            self.num_samples = len(range(rank, size, num_replicas))
            self.total_size = size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        size = len(self.dataset)  # type: ignore[arg-type]  # a range
        if self.shuffle:
            seed = int(derive_seeds(self.seed, self.epoch)[0] >> 1)
            order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        else:
            order = torch.arange(size)
        mine = order[self.rank : self.total_size : self.num_replicas]
        for index in mine[self.start :].tolist():
            yield self.epoch, index


class ResumableLoader(DataLoader[Any]):
    """A `DataLoader` over an `EpochSampler` whose state is its position, in the form that Lightning saves and loads.

    Its length is that of a whole epoch, also in an epoch that it resumes: Lightning counts the finished batches itself.
    Give it a `generator` of its own, otherwise every new iterator draws a number from torch's global one.
    """

    _position = 0
    _resume: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterate from the position that was loaded, if its epoch is the sampler's, and otherwise from the beginning.

        A generator: its body runs at the first batch. Lightning makes the first iterator before it sets the epoch, and
        with worker processes a resumed run would else see the first epoch's order again.
        """
        position = 0
        if isinstance(self.sampler, EpochSampler):
            if self._resume is not None and self._resume[0] == self.sampler.epoch:
                position = self._resume[1]
            self.sampler.start = position * (self.batch_size or 1)
        self._resume = None
        self._position = position
        for batch in super().__iter__():
            self._position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of batches given out in it, with what makes them comparable."""
        return {"epoch": getattr(self.sampler, "epoch", 0), "position": self._position, **self._identity()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start where `state` was taken; refuse another batch size, number of batches or seed: no position is right."""
        for name, value in self._identity().items():
            if state.get(name, value) != value:
                raise StructuredInitError(
                    f"the checkpoint was made in the middle of an epoch with {name.replace('_', ' ')} {state[name]}, "
                    f"now it is {value}: resume with the same, or start a new run from its weights"
                )
        self._resume = int(state["epoch"]), int(state["position"])

    def _identity(self) -> dict[str, int]:
        seed = {"seed": self.sampler.seed} if isinstance(self.sampler, EpochSampler) else {}
        return {"batch_size": self.batch_size or 1, "number_of_batches": len(self), **seed}


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
        self,
        name: str,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        check_whole(who, batch_size=batch_size)
        check_whole(who, null=True, eval_batch_size=eval_batch_size)
        check_whole(who, least=0, num_workers=num_workers)
        check_whole(who, least=0, null=True, seed=seed)
        self.name = name
        self.batch_size, self.eval_batch_size = batch_size, batch_size if eval_batch_size is None else eval_batch_size
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.num_workers = num_workers

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

    @property
    def predict_set(self) -> Dataset[Any]:
        """What `predict` reads."""
        return self.test_set

    def setup(self, stage: str) -> None:
        """Open what the stage needs."""
        if self.trainer is not None:  # ranks with global seeds of their own must still share one order
            self.seed = self.trainer.strategy.broadcast(self.seed)
        needed = {"fit": ("train_set", "val_set"), "validate": ("val_set",), "test": ("test_set",)}
        for part in needed.get(stage, ("predict_set",)):
            getattr(self, part)
        if stage == "fit" and self.trainer is not None:
            held = len(self.val_set or ())
            rank_zero_info(f"data: {len(self.train_set):,} {self.unit} to train on, {held:,} to validate on")

    def train_dataloader(self) -> Any:
        """Full batches in a new order in each epoch."""
        sampler = self._sampler(len(self.train_set), shuffle=True)
        if len(sampler) < self.batch_size:
            raise StructuredInitError(
                f"batch_size={self.batch_size} is larger than the training part of '{self.name}', "
                f"which has {len(sampler)} {self.unit} per process: give a smaller one, or more data"
            )
        return ResumableLoader(
            self.train_set, batch_size=self.batch_size, sampler=sampler, drop_last=True, **self._loader_arguments()
        )

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """All validation samples in order; empty without a validation part."""
        return self._ordered(self.val_set) if self.val_set is not None else []

    def test_dataloader(self) -> DataLoader[Any]:
        return self._ordered(self.test_set)

    def predict_dataloader(self) -> DataLoader[Any]:
        return self._ordered(self.predict_set)

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


def check_fractions(**shares: float) -> None:
    """Raise an error for a share outside (0, 1]."""
    for name, value in shares.items():
        if not 0 < value <= 1:
            raise StructuredInitError(f"{name}={value} is not in (0, 1]")
