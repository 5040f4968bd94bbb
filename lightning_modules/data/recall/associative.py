"""Multi-query associative recall: pairs of keys and values, then some of the keys again at uneven distances."""

from __future__ import annotations

import numpy as np

from lightning_modules.data.recall.task import IGNORED, Example, RecallTask, at_least
from structured_init.errors import StructuredInitError

TOKENS_PER_PAIR = 16  # of the grid (64, 4), (128, 8), (256, 16) in 2312.04927


class MultiQueryRecall(RecallTask):
    """Key–value pairs one behind the other, then every key once more; at each of these its value is predicted.

    The length is the number of tokens. Keys are 1 … V/2 − 1, values V/2 … V − 1, no key and no value occurs twice, and
    0 fills the places between queries. The i-th slot of two tokens behind the pairs holds a query with weight i^(a−1):
    small a puts the queries near the pairs, 1 spreads them evenly.

    Args:
        vocab_size: V.
        num_pairs: pairs; one in 16 tokens where null.
        power: a.
        random_fill: fill with random tokens instead of 0.

    Raises:
        StructuredInitError: the vocabulary has too few keys, or the length too few places; when examples are drawn,
            for pairs that depend on the length.

    Source: Arora, Eyuboglu et al., 2312.04927, figure 2; HazyResearch/zoology, ``zoology/data/multiquery_ar.py``.
    """

    padding = 0
    length_step = 2

    def __init__(
        self, vocab_size: int = 8192, num_pairs: int | None = None, power: float = 0.01, random_fill: bool = False
    ) -> None:
        at_least("MultiQueryRecall", vocab_size=(vocab_size, 4), num_pairs=(1 if num_pairs is None else num_pairs, 1))
        if not 0 < power <= 1:
            raise StructuredInitError(f"MultiQueryRecall: power must be in (0, 1], got {power}")
        self.vocab_size, self.num_pairs, self.power, self.random_fill = vocab_size, num_pairs, power, random_fill
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
        weights = (self.power - 1) * np.log(np.arange(1, slots + 1))
        places = 2 * pairs + 2 * np.argsort(-(weights + rng.gumbel(size=slots)))[:pairs]
        inputs, targets = np.zeros(length, dtype=np.int64), np.full(length, IGNORED)
        inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2] = keys, values
        inputs[places], targets[places] = keys, values
        key = inputs.tobytes()
        if self.random_fill:
            empty = inputs == 0
            inputs[empty] = rng.integers(self.vocab_size, size=int(empty.sum()))
        return Example(inputs, targets, targets != IGNORED, key)

    def num_tokens(self, length: int) -> int:
        return length

    def _check_vocabulary(self, pairs: int) -> None:
        keys = self.vocab_size // 2 - 1
        if keys < pairs:
            raise StructuredInitError(
                f"MultiQueryRecall: a vocabulary of {self.vocab_size} has {keys} keys, too few for {pairs} key–value "
                f"pairs: vocab_size is at least {2 * pairs + 2}"
            )
