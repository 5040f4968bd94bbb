"""Needle retrieval: one marked value anywhere in a long text of noise, asked for at the end."""

from __future__ import annotations

import numpy as np

from lightning_modules.data.recall.task import Example, RecallTask, answered, at_least
from structured_init.errors import StructuredInitError


class NeedleRetrieval(RecallTask):
    """Noise with ``# v_1 … v_k`` at a random depth, then ``?``, and the answer ``v_1 … v_k``.

    The length is that of the part before the question. Words are numbered from 0, then come ``#``, ``?`` and the
    padding; noise and values are drawn from the same words, so that nothing but the mark tells the needle. The form is
    ours: the public tests of this kind are in English.

    Args:
        num_words: how many words there are.
        num_values: k.
    """

    def __init__(self, num_words: int = 64, num_values: int = 4) -> None:
        at_least("NeedleRetrieval", num_words=(num_words, 2), num_values=(num_values, 1))
        self.num_words, self.num_values = num_words, num_values
        self.mark, self.question, self.padding = range(num_words, num_words + 3)
        self.vocab_size = num_words + 3

    def check(self, length: int) -> None:
        if length <= self.num_values:
            raise StructuredInitError(
                f"NeedleRetrieval: a mark and {self.num_values} values do not fit into a length of {length}"
            )

    def draw(self, length: int, rng: np.random.Generator) -> Example:
        text = rng.integers(self.num_words, size=length)
        depth = int(rng.integers(length - self.num_values))
        text[depth] = self.mark
        values = text[depth + 1 : depth + 1 + self.num_values]
        sequence = np.concatenate([text, [self.question], values])
        return answered(sequence, np.arange(len(sequence)) > length, self.padding, text.tobytes())

    def num_tokens(self, length: int) -> int:
        return length + self.num_values
