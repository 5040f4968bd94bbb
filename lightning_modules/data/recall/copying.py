"""Strings to be repeated, as they are, from the end, or sorted: ``$x|y.``.

The tokens are numbered like those of Jelassi et al. (2402.01032, code sjelassi/transformers_ssm_copy): the letters from
0, then ``$``, ``|``, ``.`` and the padding ``*``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.recall.task import Example, RecallTask, answered, at_least


class Copying(RecallTask):
    """The answer is the string; the length is its letters. The full stop is trained on, and not scored.

    Args:
        num_letters: how many letters there are.
    """

    packable = True

    def __init__(self, num_letters: int = 26) -> None:
        at_least(type(self).__name__, num_letters=(num_letters, 2))
        self.num_letters = num_letters
        self.begin, self.bar, self.end, self.padding = range(num_letters, num_letters + 4)
        self.vocab_size = num_letters + 4

    def draw(self, length: int, rng: np.random.Generator) -> Example:
        letters = rng.integers(self.num_letters, size=length)
        sequence = np.concatenate([[self.begin], letters, [self.bar], self.answer(letters), [self.end]])
        return answered(sequence, np.arange(len(sequence)) >= length + 2, self.end, letters.tobytes())

    def num_tokens(self, length: int) -> int:
        return 2 * length + 2

    def answer(self, letters: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what stands behind the bar."""
        return letters


class StackCopying(Copying):
    """The answer is the string from its end: last in, first out.

    Args:
        num_letters: how many letters there are.
    """

    def answer(self, letters: NDArray[np.int64]) -> NDArray[np.int64]:
        return letters[::-1]


class Sorting(Copying):
    """The answer is the string's letters in their order, with repetitions.

    Args:
        num_letters: how many letters there are.
    """

    def answer(self, letters: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.sort(letters)
