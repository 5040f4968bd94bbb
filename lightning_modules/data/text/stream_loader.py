"""`StreamLoader`: batches of a stream, with a position from which it goes on exactly.

Letters: B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_modules.data.randomness import derive_seeds
from lightning_modules.data.seeded import as_it_is
from lightning_modules.data.text.blocks import Blocks
from lightning_modules.data.text.groups import Group, Groups
from structured_init.errors import StructuredInitError

Batch = dict[str, Tensor]
Place = tuple[int, int, int]  # epoch of the stream, group, and how many of its blocks were given out


class StreamLoader:
    """Batches of a stream, as many in each epoch as are asked for; an epoch goes on where the one before it ended.

    The blocks of a group come in an order, and with a corruption, that are functions of (seed, epoch of the stream,
    group); so the batches do not depend on the number of workers. Its state is its position, in the form that Lightning
    saves and loads. To go on from there, the stream is read again up to it, and not tokenized.

    Args:
        groups: of the stream.
        blocks: makes the blocks of a group; called with it.
        batch_size: B.
        batches_per_epoch: its length.
        num_workers: processes that read and tokenize.
    """

    def __init__(
        self,
        groups: Groups,
        blocks: Callable[[Group], Blocks],
        *,
        batch_size: int,
        batches_per_epoch: int,
        num_workers: int = 0,
    ) -> None:
        self.groups, self.blocks = groups, blocks
        self.batch_size, self.batches_per_epoch, self.num_workers = batch_size, batches_per_epoch, num_workers
        self._epoch = 0
        self._start: tuple[int, Place] = (0, (0, 0, 0))  # batches given out in this epoch, where to go on
        self._furthest = self._start
        self._spare: tuple[Place, Iterator[tuple[Batch, Place]]] | None = None

    def __len__(self) -> int:
        return self.batches_per_epoch

    @property
    def sampler(self) -> StreamLoader:
        """Return the loader itself: Lightning says the epoch to a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch where the one before it ended."""
        if epoch != self._epoch:
            self._epoch, self._start = epoch, (0, self._furthest[1])
            self._furthest = self._start

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the epoch.

        A generator: its body runs at the first batch, when the epoch has been said. Who looks at a few batches and
        drops the iterator changes nothing for others: all start at the same place.
        """
        given, place = self._start
        batches = self._open(place)
        while given < self.batches_per_epoch:
            batch, place = next(batches)
            given += 1
            if given > self._furthest[0]:
                self._furthest = given, place
            try:
                yield batch
            except GeneratorExit:  # dropped before its end, as by limit_train_batches
                self._spare = place, batches
                raise
        self._spare = place, batches

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches of the epoch were given out and where the stream goes on."""
        given, place = self._furthest
        places = gathered(place) if self.groups.num_replicas > 1 else [place]  # Lightning keeps rank 0's state alone
        return {"epoch": self._epoch, "position": given, "places": places, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            StructuredInitError: the stream is cut in another way, so no place in it would be right.
        """
        for name, value in self._identity().items():
            if state.get(name, value) != value:
                raise StructuredInitError(
                    f"the checkpoint was made in the middle of a stream with {name.replace('_', ' ')} {state[name]}, "
                    f"now it is {value}: resume with the same, or start a new run from its weights"
                )
        self._epoch = int(state["epoch"])
        self._start = self._furthest = int(state["position"]), tuple(state["places"][self.groups.rank])
        self._spare = None

    def _identity(self) -> dict[str, int]:
        groups = self.groups
        return {"batch_size": self.batch_size, "stream_buffer": groups.characters, "seed": groups.seed,
                "processes": groups.num_replicas}  # fmt: skip

    def _open(self, place: Place) -> Iterator[tuple[Batch, Place]]:
        """Return the batches from a place on: those of the iterator that has just come there, where it is at hand."""
        spare, self._spare = self._spare, None
        return spare[1] if spare is not None and spare[0] == place else self._batches(place)

    def _batches(self, place: Place) -> Iterator[tuple[Batch, Place]]:
        """Return an iterator over batches and the place after each."""
        groups = copy.copy(self.groups)
        groups.start = place[:2]
        return _batches_of(groups, self.blocks, self.batch_size, self.num_workers, place[2])


def gathered(place: Place) -> list[Place]:
    """Return the places of all processes; each takes part in a checkpoint."""
    places: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(places, place)
    return places


def _joined(parts: list[Batch]) -> Batch:
    """Join batches, those without segments being of one each."""
    if any("segment_ids" in part for part in parts):
        parts = [{"segment_ids": torch.ones_like(part["input_ids"]), **part} for part in parts]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _batches_of(
    groups: Groups, blocks_of: Callable[[Group], Blocks], batch_size: int, num_workers: int, skip: int
) -> Iterator[tuple[Batch, Place]]:
    """Yield batches and the place after each.

    It does not hold the loader, which holds it. In a reference cycle, Python closes the workers' queues before torch
    can tell the workers to stop, and torch then waits 5 seconds for each of them.

    Args:
        groups: from the first one on.
        blocks_of: makes the blocks of a group.
        batch_size: B.
        num_workers: processes that read and tokenize.
        skip: how many blocks of the first group were given out.
    """
    # With one worker per process, a group at a time; its generator is its own, not torch's global one.
    loader = DataLoader(
        groups, batch_size=None, collate_fn=as_it_is, num_workers=num_workers, generator=torch.Generator()
    )
    parts: list[Batch] = []
    missing = batch_size
    for group in loader:
        blocks = blocks_of(group)
        seed = int(derive_seeds(groups.seed, group.epoch, group.number)[0])
        order = np.random.default_rng(seed).permutation(len(blocks))
        while skip < len(order):
            taken = order[skip : skip + missing]
            parts.append(blocks.__getitems__([(group.epoch, int(index)) for index in taken]))
            skip, missing = skip + len(taken), missing - len(taken)
            if missing == 0:
                yield _joined(parts), (group.epoch, group.number, skip)
                parts, missing = [], batch_size
        skip = 0
