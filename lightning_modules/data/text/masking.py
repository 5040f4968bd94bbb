"""The corruption of masked language modelling, a function of (seed, epoch, index)."""

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

    def __call__(self, ids: NDArray[np.int64], epoch: int, index: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Corrupt one block.

        Args:
            ids: without padding, (T,).
            epoch: of the training.
            index: of the block.

        Returns:
            The ids with some replaced, (T,), and which are to be predicted, (T,).
        """
        rng = np.random.default_rng(int(derive_seeds(self.seed, 0 if self.fixed else epoch, index)[0]))
        chances = np.where(self._special[ids], 2.0, rng.random(len(ids)))
        chosen = chances < self.probability
        if not chosen.any() and chances.min(initial=2.0) < 1:
            chosen[chances.argmin()] = True
        fate = rng.random(len(ids))
        other = rng.choice(self._ordinary, len(ids))
        corrupted = np.where(chosen & (fate < 0.8), self.tokenizer.mask_token_id, ids)
        return np.where(chosen & (fate >= 0.8) & (fate < 0.9), other, corrupted), chosen
