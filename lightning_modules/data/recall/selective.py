"""Selective copying: a few tokens among noise, to be repeated in order."""

from __future__ import annotations

import numpy as np

from lightning_modules.data.recall.task import IGNORED, Example, RecallTask, at_least
from structured_init.errors import StructuredInitError


class SelectiveCopying(RecallTask):
    """``num_data`` tokens at random places among noise, then as many markers, at which they are predicted in order.

    The length is that of the part before the markers. Token 0 is noise, the last number is the marker, and data are the
    numbers between, in the form that Mamba's experiment takes from S4's code (2312.00752, §4.1.1; state-spaces/s4,
    ``src/dataloaders/datasets/copying.py``, ``variable``): 4096 tokens, 16 of them data, 16 numbers.

    Args:
        vocab_size: numbers in all, noise and marker included.
        num_data: how many tokens are to be repeated.
    """

    padding = 0

    def __init__(self, vocab_size: int = 16, num_data: int = 16) -> None:
        at_least("SelectiveCopying", vocab_size=(vocab_size, 4), num_data=(num_data, 1))
        self.vocab_size, self.num_data = vocab_size, num_data

    def check(self, length: int) -> None:
        if length < self.num_data:
            raise StructuredInitError(
                f"SelectiveCopying: {self.num_data} data tokens do not fit into a length of {length}"
            )

    def draw(self, length: int, rng: np.random.Generator) -> Example:
        data = rng.integers(1, self.vocab_size - 1, size=self.num_data)
        context = np.zeros(length, dtype=np.int64)
        context[np.sort(rng.choice(length, self.num_data, replace=False))] = data
        inputs = np.concatenate([context, np.full(self.num_data, self.vocab_size - 1)])
        targets = np.concatenate([np.full(length, IGNORED), data])
        return Example(inputs, targets, targets != IGNORED, context.tobytes())

    def num_tokens(self, length: int) -> int:
        return length + self.num_data
