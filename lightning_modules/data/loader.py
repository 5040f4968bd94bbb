"""A sampler of (epoch, index) pairs and a loader that can start in the middle of an epoch.

torchdata's ``StatefulDataLoader`` (0.11) resumes in the middle of an epoch too, but with the same number of worker
processes only: a state saved with 2 workers is refused with 0 and with 1. Here a batch is a function of its number, so
the state is one number, and a run may go on with any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from lightning_modules.data.randomness import derive_seeds
from structured_init.errors import StructuredInitError


class EpochSampler(DistributedSampler[Any]):
    """Yields ``(epoch, index)``, so that a dataset can make a sample a pure function of (seed, epoch, index).

    It is a `DistributedSampler` because Lightning then keeps it as it is under DDP and calls its `set_epoch`. Shuffled,
    every rank gets the same number of samples: what does not divide is left out, another part of it in each epoch.
    In order, nothing is left out and nothing is repeated, so that a metric over all ranks counts each sample once.

    Args:
        size: number of samples in the dataset.
        shuffle: a new order in each epoch.
        seed: of the order.
        num_replicas: number of processes.
        rank: of this process.

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
        """Start the next iteration where `state` was taken.

        Raises:
            StructuredInitError: batch size, number of batches or seed is another one, so no position would be right.
        """
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
