"""The recall tasks: what an example is, copying and associative recall."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structured_init.util.arguments import check_known, check_takes, check_whole
from structured_init.util.errors import StructuredInitError

IGNORED = -100  # the target where nothing is to be predicted, as torch and transformers have it


class Example(NamedTuple):
    """One example."""

    inputs: NDArray[np.int64]  # (T,) token numbers
    targets: NDArray[np.int64]  # (T,) what is predicted at each position; −100 where nothing is
    scored: NDArray[np.bool_]  # (T,) the targets that have to be right; an end mark may be trained on and not scored
    key: bytes  # what makes two examples the same


class RecallTask(ABC):
    """Draws examples. Subclass it, store every constructor argument under its own name, and add it to ``TASKS``."""

    vocab_size: int  # how many token numbers there are, marks included
    padding: int  # the token that fills up a batch behind the shorter examples
    length_step: ClassVar[int] = 1  # the distance between the lengths that it has

    @abstractmethod
    def draw(self, length: int, rng: np.random.Generator) -> Example:
        """Draw an example of a length, in the task's own unit, from ``rng`` and nothing else."""

    @abstractmethod
    def num_tokens(self, length: int) -> int:
        """Return T for a length."""

    def check(self, length: int) -> None:
        """Raise a ``StructuredInitError`` for a length that the task cannot have."""
        check_whole(type(self).__name__, length=length)


class Copying(RecallTask):
    """The answer is the string; the length is its letters. The full stop is trained on, and not scored.

    Args:
        num_letters: how many letters there are.
    """

    def __init__(self, num_letters: int = 26) -> None:
        check_whole(type(self).__name__, 2, num_letters=num_letters)
        self.num_letters = num_letters
        self.begin, self.bar, self.end, self.padding = range(num_letters, num_letters + 4)
        self.vocab_size = num_letters + 4

    def draw(self, length: int, rng: np.random.Generator) -> Example:
        letters = rng.integers(self.num_letters, size=length)
        sequence = np.concatenate([[self.begin], letters, [self.bar], letters, [self.end]])
        is_answer = np.arange(len(sequence)) >= length + 2
        targets = np.where(is_answer, sequence, IGNORED)[1:]
        return Example(sequence[:-1], targets, (targets != IGNORED) & (targets != self.end), letters.tobytes())

    def num_tokens(self, length: int) -> int:
        return 2 * length + 2


POWER = 0.01  # a of 2312.04927
TOKENS_PER_PAIR = 16  # of the grid (64, 4), (128, 8), (256, 16) in 2312.04927


class MultiQueryRecall(RecallTask):
    """Key–value pairs one behind the other, then every key once more; at each of these its value is predicted.

    The length is the number of tokens. Keys are 1 … V/2 − 1, values V/2 … V − 1 of a ``vocab_size`` V, no key and no
    value occurs twice, and 0 fills the places between queries. The i-th slot of two tokens behind the pairs holds a
    query with weight i^(a−1), a = 0.01, which puts the queries near the pairs. There is a pair in 16 tokens where
    ``num_pairs`` is null.

    Raises:
        StructuredInitError: the vocabulary has too few keys, or the length too few places; when examples are drawn,
            for pairs that depend on the length.

    Source: Arora, Eyuboglu et al., 2312.04927, figure 2; HazyResearch/zoology, ``zoology/data/multiquery_ar.py``.
    """

    padding = 0
    length_step = 2

    def __init__(self, vocab_size: int = 8192, num_pairs: int | None = None) -> None:
        check_whole("MultiQueryRecall", 4, vocab_size=vocab_size)
        check_whole("MultiQueryRecall", null=True, num_pairs=num_pairs)
        self.vocab_size, self.num_pairs = vocab_size, num_pairs
        if num_pairs is not None:
            self._check_vocabulary(num_pairs)

    def pairs(self, length: int) -> int:
        """Return how many pairs an example of a length has."""
        return max(length // TOKENS_PER_PAIR, 1) if self.num_pairs is None else self.num_pairs

    def check(self, length: int) -> None:
        pairs = self.pairs(length)
        if length % 2 or length < 4 * pairs:
            raise StructuredInitError(
                f"MultiQueryRecall: a length of {length} is odd or too short for {pairs} pairs and their queries: "
                f"take an even one, {4 * pairs} or more"
            )
        self._check_vocabulary(pairs)

    def draw(self, length: int, rng: np.random.Generator) -> Example:
        pairs, half = self.pairs(length), self.vocab_size // 2
        keys = 1 + rng.choice(half - 1, pairs, replace=False)
        values = half + rng.choice(self.vocab_size - half, pairs, replace=False)
        # Successive draws without replacement, by the largest of log weight + Gumbel noise.
        slots = (length - 2 * pairs) // 2
        weights = (POWER - 1) * np.log(np.arange(1, slots + 1))
        places = 2 * pairs + 2 * np.argsort(-(weights + rng.gumbel(size=slots)))[:pairs]
        inputs, targets = np.zeros(length, dtype=np.int64), np.full(length, IGNORED)
        inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2] = keys, values
        inputs[places], targets[places] = keys, values
        return Example(inputs, targets, targets != IGNORED, inputs.tobytes())

    def num_tokens(self, length: int) -> int:
        return length

    def _check_vocabulary(self, pairs: int) -> None:
        keys = self.vocab_size // 2 - 1
        if keys < pairs:
            raise StructuredInitError(
                f"MultiQueryRecall: a vocabulary of {self.vocab_size} has {keys} keys, too few for {pairs} key–value "
                f"pairs: vocab_size is at least {2 * pairs + 2}"
            )


TASKS: dict[str, type[RecallTask]] = {"copying": Copying, "mqar": MultiQueryRecall}


def create_task(name: str, **task_args: Any) -> RecallTask:
    """Build a task by its name; refuse an unknown name or argument with the nearest, and a number out of range."""
    check_known("task", name, TASKS)
    check_takes(f"task '{name}'", task_args, inspect.signature(TASKS[name]).parameters)
    return TASKS[name](**task_args)
