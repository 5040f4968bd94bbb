"""What a recall task is: a way to draw one example of a given length.

Letters: T tokens of one example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structured_init.errors import StructuredInitError

IGNORED = -100  # the target where nothing is to be predicted, as torch and transformers have it


class Example(NamedTuple):
    """One example.

    Attributes:
        inputs: (T,) token numbers.
        targets: (T,) what is predicted at each position; −100 where nothing is.
        scored: (T,) bool, the targets that have to be right; an end mark may be trained on and not scored.
        key: what makes two examples the same, apart from noise.
    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    scored: NDArray[np.bool_]
    key: bytes


class RecallTask(ABC):
    """Draws examples. Subclass it, store every constructor argument under its own name, and add it to ``TASKS``.

    Attributes:
        vocab_size: how many token numbers there are, marks included.
        padding: the token that fills up a batch behind the shorter examples.
        packable: examples may stand one behind the other in one context.
        length_step: the distance between the lengths that it has.
    """

    vocab_size: int
    padding: int
    packable: ClassVar[bool] = False
    length_step: ClassVar[int] = 1

    @abstractmethod
    def draw(self, length: int, rng: np.random.Generator) -> Example:
        """Draw an example of a length, in the task's own unit, from ``rng`` and nothing else."""

    @abstractmethod
    def num_tokens(self, length: int) -> int:
        """Return T for a length."""

    def check(self, length: int) -> None:
        """Raise a ``StructuredInitError`` for a length that the task cannot have."""
        at_least(type(self).__name__, length=(length, 1))


def answered(sequence: NDArray[np.int64], answer: NDArray[np.bool_], end: int, key: bytes) -> Example:
    """Return the example in which each answer token is predicted from those before it.

    Args:
        sequence: (T + 1,) all tokens, the answer among them.
        answer: (T + 1,) which of them are the answer.
        end: a token of the answer that is not scored.
        key: what makes two examples the same.
    """
    targets = np.where(answer, sequence, IGNORED)[1:]
    return Example(sequence[:-1], targets, (targets != IGNORED) & (targets != end), key)


def at_least(who: str, **values: tuple[int, int]) -> None:
    """Raise one line for the first number below its minimum, given as name = (number, minimum)."""
    for name, (value, minimum) in values.items():
        if value < minimum:
            raise StructuredInitError(f"{who}: {name} must be at least {minimum}, got {value}")
