"""The corruption of masked language modelling, a function of (seed, epoch, index).

Letters: B batch, T block size.

transformers' ``DataCollatorForLanguageModeling`` makes the same corruption from a running generator, by torch or numpy.
What it hides depends on all batches before, so a run that is resumed, or that has another number of workers, would see
other blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.randomness import derive_seeds
from lightning_modules.data.text.tokenizer import Tokenizer
from structured_init.errors import StructuredInitError


@dataclass
class Masking:
    """Chooses tokens to predict, and hides most of them: 80 % masked, 10 % another token, 10 % as they are.

    Args:
        tokenizer: has a mask token; its special tokens are neither chosen nor drawn.
        probability: that a token is chosen, in (0, 1].
        seed: of the choice.
        fixed: whether all epochs have the corruption of epoch 0, as for validation.

    Raises:
        StructuredInitError: no mask token, or a probability out of its range.

    Source:
        Devlin et al., "BERT", 2019, section 3.1 and appendix A.1. At least one token of a block is chosen.
    """

    tokenizer: Tokenizer
    probability: float
    seed: int
    fixed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise StructuredInitError(f"mask_probability={self.probability} is not in (0, 1]")
        if self.tokenizer.mask_token_id is None:
            raise StructuredInitError(
                f"tokenizer '{self.tokenizer.name}' has no mask token, which objective 'masked' needs: use one of a "
                "masked model, or one made from the text (bpe, wordpiece, characters, bytes)"
            )
        self._special = np.isin(np.arange(self.tokenizer.vocab_size), self.tokenizer.special_ids)
        self._ordinary = np.flatnonzero(~self._special)

    def __call__(
        self, ids: NDArray[np.int64], present: NDArray[np.bool_], epochs: NDArray[np.int64], indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Corrupt a batch; what happens to a block does not depend on the others.

        Args:
            ids: with padding, (B, T).
            present: where there is no padding, (B, T).
            epochs: of the training, (B,).
            indices: of the blocks, (B,).

        Returns:
            The ids with some replaced, (B, T), and which are to be predicted, (B, T).
        """
        chances, fate, draw = self._uniform(epochs, indices, ids.shape[1])
        chances[self._special[ids] | ~present] = 2.0
        chosen = chances < self.probability
        for row in np.flatnonzero(~chosen.any(1) & (chances.min(1) < 1)):
            chosen[row, chances[row].argmin()] = True
        other = self._ordinary[(draw * len(self._ordinary)).astype(np.int64)]
        corrupted = np.where(chosen & (fate < 0.8), self.tokenizer.mask_token_id, ids)
        return np.where(chosen & (fate >= 0.8) & (fate < 0.9), other, corrupted), chosen

    def _uniform(self, epochs: NDArray[np.int64], indices: NDArray[np.int64], length: int) -> NDArray[np.float64]:
        """Return three numbers in [0, 1) for each token, (3, B, T): hashed, since a generator per block is slow."""
        epochs = np.zeros_like(epochs) if self.fixed else epochs
        what = np.arange(3)[:, None, None]
        words = derive_seeds(self.seed, epochs[:, None], indices[:, None], what, np.arange(length))
        return (words >> np.uint64(11)) * 2.0**-53
