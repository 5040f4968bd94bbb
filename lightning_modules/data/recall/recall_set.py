"""A recall task as a dataset: every example a function of (seed, epoch, index), none of them in two parts.

Letters: B batch, T tokens of the longest example.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from lightning_modules.data.randomness import derive_seeds
from lightning_modules.data.recall.task import IGNORED, Example, RecallTask
from structured_init.errors import StructuredInitError

Part = Literal["train", "val", "test"]
PARTS: dict[Part, tuple[int, ...]] = {"test": (0,), "val": (1,), "train": tuple(range(2, 16))}
BUCKETS = 16  # of the examples' hashes: one for test, one for validation, the rest for training
ATTEMPTS = 2000  # an example of every sixteenth hash is missed so often with probability 1e-56

Batch = dict[str, Tensor]


class RecallSet(Dataset[Batch]):
    """Examples of one part, drawn when they are asked for.

    Which part an example belongs to is said by a hash of what it asks, whatever the seed and the index: an example of
    one part is drawn again until it is its own, so no example is in two parts, not even of runs of other seeds.

    Args:
        task: draws examples.
        part: ``train``, ``val`` or ``test``.
        lengths: smallest and largest length, drawn evenly; or several such pairs, of ``size`` examples each.
        size: number of examples, or of packed contexts.
        seed: of the draws.
        context_length: tokens of one context that examples fill one behind the other; ``None`` for one example each.
        fresh: draw other examples in every epoch.
    """

    def __init__(
        self,
        task: RecallTask,
        part: Part,
        lengths: Sequence[tuple[int, int]],
        size: int,
        seed: int,
        context_length: int | None = None,
        fresh: bool = True,
    ) -> None:
        self.task, self.part, self.lengths, self.size = task, part, list(lengths), size
        self.seed, self.context_length, self.fresh = seed, context_length, fresh

    def __len__(self) -> int:
        return self.size * len(self.lengths)

    def __getitem__(self, key: int | tuple[int, int]) -> Batch:
        return {name: values[0] for name, values in self.__getitems__([key]).items()}

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> Batch:
        """Return a batch, filled up behind the shorter examples.

        Args:
            keys: pairs (epoch, index); an index alone belongs to epoch 0.

        Returns:
            ``input_ids`` (B, T); ``targets`` (B, T), what is predicted at each position, −100 where nothing is;
            ``scored`` (B, T) bool; ``lengths`` (B,), in the task's unit, the longest of a packed context.
        """
        epochs, indices = np.array([key if isinstance(key, tuple) else (0, key) for key in keys]).T
        seeds = derive_seeds(self.seed, list(PARTS).index(self.part), epochs if self.fresh else 0, indices)
        drawn = [self._sample(*each) for each in zip(indices.tolist(), seeds.tolist(), strict=True)]
        fills = {"input_ids": self.task.padding, "targets": IGNORED, "scored": False}
        longest = max(len(example.inputs) for example, _ in drawn)
        batch = {
            name: _side_by_side([example[column] for example, _ in drawn], longest, fill)
            for column, (name, fill) in enumerate(fills.items())
        }
        return {**batch, "lengths": torch.tensor([length for _, length in drawn])}

    def _sample(self, index: int, seed: int) -> tuple[Example, int]:
        rng = np.random.Generator(np.random.Philox(key=seed))  # a key needs no hashing of its own
        smallest, largest = self.lengths[index // self.size]
        if self.context_length is not None:
            return self._packed(smallest, largest, rng), largest
        length = self._length(smallest, largest, rng)
        return self._own(length, rng), length

    def _length(self, smallest: int, largest: int, rng: np.random.Generator) -> int:
        step = self.task.length_step
        return smallest + step * int(rng.integers((largest - smallest) // step + 1))

    def _own(self, length: int, rng: np.random.Generator) -> Example:
        """Draw until an example belongs to this part."""
        for _ in range(ATTEMPTS):
            example = self.task.draw(length, rng)
            if bucket(example.key) in PARTS[self.part]:
                return example
        raise StructuredInitError(
            f"{type(self.task).__name__} has so few examples of length {length} that none is left for the "
            f"{self.part} part: take longer ones, or a larger vocabulary"
        )

    def _packed(self, smallest: int, largest: int, rng: np.random.Generator) -> Example:
        """Fill a context with examples; the last one is cut off, and nothing of it is predicted.

        Every example ends with the mark that its last target is, as it does alone.
        """
        room = self.context_length or 0
        inputs, targets, scored, used = [], [], [], 0
        while used < room:
            example = self._own(self._length(smallest, largest, rng), rng)
            whole = np.append(example.inputs, example.targets[-1])
            fits = used + len(whole) <= room
            answer = np.append(example.targets, IGNORED) if fits else np.full(len(whole), IGNORED)
            inputs.append(whole)
            targets.append(answer)
            scored.append(np.append(example.scored, False) & fits)
            used += len(whole)
        joined = (np.concatenate(each)[: room - 1] for each in (inputs, targets, scored))
        return Example(*joined, key=b"")


def bucket(key: bytes) -> int:
    """Return the number, below 16, that says to which part an example belongs."""
    return hashlib.blake2b(key, digest_size=1).digest()[0] % BUCKETS


def _side_by_side(rows: list[NDArray], length: int, fill: int | bool) -> Tensor:
    batch = np.full((len(rows), length), fill)
    for filled, row in zip(batch, rows, strict=True):
        filled[: len(row)] = row
    return torch.from_numpy(batch)
