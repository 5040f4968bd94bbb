"""`RecallData`: generated recall tasks as training, validation and test batches."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lightning_modules.data.recall.recall_set import RecallSet
from lightning_modules.data.recall.tasks import create_task
from lightning_modules.data.seeded import SeededData
from structured_init.errors import StructuredInitError


class RecallData(SeededData):
    """Examples drawn when they are asked for; nothing is downloaded or stored.

    A batch is a dictionary of ``input_ids`` (B, T) and ``targets`` (B, T), what is predicted at each position, −100
    where nothing is; ``scored`` (B, T), the targets that count as the answer; and ``lengths`` (B,). Behind the shorter
    examples of a batch there is padding, which a causal model cannot see.

    Every example is a function of (seed, epoch, index). No example of the test or validation part is ever trained on,
    under any seed: see :class:`RecallSet`.

    Args:
        task: ``copying``, ``stack_copying``, ``sorting``, ``selective_copying``, ``mqar`` or ``needle``.
        task_args: of the task, such as ``num_letters`` or ``num_pairs``.
        min_length: of training examples, in the task's unit: letters, or tokens of what is to be remembered.
        max_length: of training and validation examples.
        test_lengths: lengths to test on; 1, 2 and 4 times ``max_length`` where null.
        packed: fill training contexts with copying examples one behind the other, as the published runs do.
        context_length: tokens of a packed context.
        fresh: draw new training examples in each epoch; else the same ones come again in another order.
        train_examples: training examples, or packed contexts, of one epoch.
        val_examples: validation examples.
        test_examples: test examples of each length.
        batch_size: examples per batch and process.
        eval_batch_size: examples per batch for validation and test; ``batch_size`` where null.
        seed: of the examples and their order; ``None`` takes the seed of ``seed_everything``, or 0.
        num_workers: processes that draw, per loader.

    Raises:
        StructuredInitError: unknown task or argument, a vocabulary too small for the pairs, lengths that the task
            cannot have or a context cannot hold, a number out of range.
    """

    unit = "examples"

    def __init__(
        self,
        task: str = "copying",
        task_args: dict[str, Any] | None = None,
        min_length: int = 10,
        max_length: int = 50,
        test_lengths: list[int] | None = None,
        packed: bool = False,
        context_length: int = 220,
        fresh: bool = True,
        train_examples: int = 100_000,
        val_examples: int = 1_000,
        test_examples: int = 1_000,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            task, batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed, num_workers=num_workers
        )
        self.task = create_task(task, **(task_args or {}))
        self.min_length, self.max_length = min_length, max_length
        self.test_lengths = [max_length, 2 * max_length, 4 * max_length] if test_lengths is None else test_lengths
        self.packed, self.context_length, self.fresh = packed, context_length, fresh
        self.train_examples, self.val_examples, self.test_examples = train_examples, val_examples, test_examples
        self._check_arguments()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, marks and padding included."""
        return self.task.vocab_size

    @property
    def block_size(self) -> int:
        """The longest input of any part: as many positions does a network need that has a limit."""
        single = max(self.task.num_tokens(length) for length in [self.max_length, *self.test_lengths])
        return max(single, self.context_length - 1) if self.packed else single

    @cached_property
    def train_set(self) -> RecallSet:
        """The training part."""
        context_length = self.context_length if self.packed else None
        lengths = [(self.min_length, self.max_length)]
        return RecallSet(self.task, "train", lengths, self.train_examples, self.seed, context_length, self.fresh)

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

    def setup(self, stage: str) -> None:
        """Agree on a seed with the other processes."""
        self.share_seed()

    def _check_arguments(self) -> None:
        counts = {"train_examples": self.train_examples, "test_examples": self.test_examples}
        for name, count in counts.items():
            if count < 1:
                raise StructuredInitError(f"{name} must be at least 1, got {count}")
        if self.val_examples < 0:
            raise StructuredInitError(f"val_examples must be at least 0, got {self.val_examples}; 0 is for none")
        if not 1 <= self.min_length <= self.max_length:
            raise StructuredInitError(
                f"min_length={self.min_length} and max_length={self.max_length} "
                "are not a range: 1 ≤ min_length ≤ max_length is needed"
            )
        if not self.test_lengths:
            raise StructuredInitError("test_lengths is empty; null tests on 1, 2 and 4 times max_length")
        lengths = {"min_length": [self.min_length], "max_length": [self.max_length], "test_lengths": self.test_lengths}
        for name, each in lengths.items():
            for length in each:
                try:
                    self.task.check(length)
                except StructuredInitError as error:
                    raise StructuredInitError(f"{name}: {error}") from None
        if self.packed and not self.task.packable:
            raise StructuredInitError(
                f"examples of '{self.name}' cannot be packed, only those of copying can: set packed=false"
            )
        longest = self.task.num_tokens(self.max_length) + 1
        if self.packed and self.context_length < longest:
            raise StructuredInitError(
                f"an example of max_length={self.max_length} takes {longest} tokens, more than "
                f"context_length={self.context_length}"
            )
