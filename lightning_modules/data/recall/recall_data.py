"""Generated recall tasks as training, validation and test batches; no test example is ever trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_modules.data.recall.tasks import IGNORED, Example, RecallTask, create_task
from lightning_modules.data.seeded import BatchedSet, SeededData, derive_seeds, epochs_and_indices
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError

Part = Literal["train", "val", "test"]
PARTS: dict[Part, tuple[int, ...]] = {"test": (0,), "val": (1,), "train": tuple(range(2, 16))}
BUCKETS = 16  # of the examples' hashes: one for test, one for validation, the rest for training
ATTEMPTS = 2000  # an example of every sixteenth hash is missed so often with probability 1e-56

Batch = dict[str, Tensor]


@dataclass(eq=False, repr=False)
class RecallSet(BatchedSet):
    """Examples of one part, drawn when they are asked for.

    Which part an example belongs to is said by a hash of what it asks, whatever the seed and the index: an example of
    one part is drawn again until it is its own, so no example is in two parts, not even of runs of other seeds.
    """

    task: RecallTask  # draws examples
    part: Part
    lengths: Sequence[tuple[int, int]]  # pairs of smallest and largest, drawn evenly, with ``size`` examples each
    size: int  # number of examples of each
    seed: int  # of the draws

    def __len__(self) -> int:
        return self.size * len(self.lengths)

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> Batch:
        """Return a batch of :class:`RecallData`; the lengths are in the task's unit."""
        epochs, indices = epochs_and_indices(keys)
        seeds = derive_seeds(self.seed, list(PARTS).index(self.part), epochs, indices)
        examples, lengths = [], []
        for index, seed in zip(indices.tolist(), seeds.tolist(), strict=True):
            rng = np.random.Generator(np.random.Philox(key=seed))  # a key needs no hashing of its own
            smallest, largest = self.lengths[index // self.size]
            step = self.task.length_step
            length = smallest + step * int(rng.integers((largest - smallest) // step + 1))
            lengths.append(length)
            examples.append(self._own(length, rng))
        batch = {}
        fills = {"input_ids": self.task.padding, "targets": IGNORED, "scored": False}
        for column, (name, fill) in enumerate(fills.items()):
            rows = [torch.from_numpy(example[column]) for example in examples]
            batch[name] = pad_sequence(rows, batch_first=True, padding_value=fill)
        return {**batch, "lengths": torch.tensor(lengths)}

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


def bucket(key: bytes) -> int:
    """Return the number, below 16, that says to which part an example belongs."""
    return hashlib.blake2b(key, digest_size=1).digest()[0] % BUCKETS


class RecallData(SeededData):
    """Examples drawn when they are asked for; nothing is downloaded or stored.

    A batch is a dictionary of ``input_ids`` (B, T) and ``targets`` (B, T), what is predicted at each position, −100
    where nothing is; ``scored`` (B, T), the targets that count as the answer; and ``lengths`` (B,). Behind the shorter
    examples of a batch there is padding, which a causal model cannot see.

    Every example is a function of (seed, epoch, index). No example of the test or validation part is ever trained on,
    under any seed: see :class:`RecallSet`.

    Args:
        task: ``copying`` or ``mqar``.
        task_args: of the task, such as ``num_letters`` or ``num_pairs``.
        min_length: of training examples, in the task's unit: letters, or tokens of what is to be remembered.
        max_length: of training and validation examples.
        test_lengths: lengths to test on; 1, 2 and 4 times ``max_length`` where null.
        train_examples: training examples of one epoch.
        val_examples: validation examples.
        test_examples: test examples of each length.
        batch_size: examples per batch and process.
        data: of :class:`SeededData`; ``seed`` is that of the examples, too.

    Raises:
        StructuredInitError: unknown task or argument, a vocabulary too small for the pairs, lengths that the task
            cannot have, a number out of range.
    """

    unit = "examples"

    def __init__(
        self,
        task: str = "copying",
        task_args: dict[str, Any] | None = None,
        min_length: int = 10,
        max_length: int = 50,
        test_lengths: list[int] | None = None,
        train_examples: int = 100_000,
        val_examples: int = 1_000,
        test_examples: int = 1_000,
        batch_size: int = 64,
        **data: Any,
    ) -> None:
        super().__init__(task, batch_size, **data)
        self.task = create_task(task, **(task_args or {}))
        self.min_length, self.max_length = min_length, max_length
        self.test_lengths = [max_length, 2 * max_length, 4 * max_length] if test_lengths is None else test_lengths
        self.train_examples, self.val_examples, self.test_examples = train_examples, val_examples, test_examples
        check_whole("RecallData", train_examples=train_examples, test_examples=test_examples)
        check_whole("RecallData", 0, val_examples=val_examples)
        if not 1 <= min_length <= max_length:
            raise StructuredInitError(
                f"min_length={min_length} and max_length={max_length} are not a range: 1 ≤ min_length ≤ max_length is "
                "needed"
            )
        for length in [min_length, max_length, *self.test_lengths]:
            self.task.check(length)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, marks and padding included."""
        return self.task.vocab_size

    @property
    def block_size(self) -> int:
        """The longest input of any part: as many positions does a network need that has a limit."""
        return max(self.task.num_tokens(length) for length in [self.max_length, *self.test_lengths])

    @cached_property
    def train_set(self) -> RecallSet:
        return RecallSet(self.task, "train", [(self.min_length, self.max_length)], self.train_examples, self.seed)

    @cached_property
    def val_set(self) -> RecallSet | None:
        """The validation part, of the longest training length; ``None`` without one."""
        if not self.val_examples:
            return None
        return RecallSet(self.task, "val", [(self.max_length, self.max_length)], self.val_examples, self.seed)

    @cached_property
    def test_set(self) -> RecallSet:
        """The test part: every test length in turn."""
        lengths = [(length, length) for length in self.test_lengths]
        return RecallSet(self.task, "test", lengths, self.test_examples, self.seed)
