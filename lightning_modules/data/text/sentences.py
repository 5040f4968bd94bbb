"""`Sentences`: classified texts as padded batches.

Letters: N texts, B batch, T longest text of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from lightning_modules.data.text.encoding import Tokens
from lightning_modules.data.text.tokenizer import Tokenizer


class Sentences(Dataset):
    """Texts between the tokens that begin and end one, where the tokenizer has them, and their classes.

    Args:
        tokens: of a split's texts.
        rows: of the split that each text is, (N,).
        labels: class of each text, (N,).
        tokenizer: knows the special tokens.
        max_length: of a text with its special tokens; longer ones lose their end.
        pad_to_max_length: whether every batch is so long; otherwise as long as its longest text.
    """

    def __init__(
        self,
        tokens: Tokens,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        tokenizer: Tokenizer,
        max_length: int,
        pad_to_max_length: bool = False,
    ) -> None:
        self.tokens, self.rows, self.labels = tokens, rows, torch.from_numpy(labels)
        self.begin = [] if tokenizer.begin_token_id is None else [tokenizer.begin_token_id]
        self.end = [] if tokenizer.end_token_id is None else [tokenizer.end_token_id]
        self.pad_token_id = tokenizer.pad_token_id
        self.max_length, self.pad_to_max_length = max_length, pad_to_max_length

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.__getitems__([key]).items()}

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch.

        Args:
            keys: pairs (epoch, index), or an index alone.

        Returns:
            ``input_ids`` (B, T) int64, ``attention_mask`` (B, T) int64 and ``labels`` (B,) int64.
        """
        indices = [key[1] if isinstance(key, tuple) else key for key in keys]
        texts = [self._tokens(index) for index in indices]
        length = self.max_length if self.pad_to_max_length else max(map(len, texts))
        input_ids = np.full((len(texts), max(length, 1)), self.pad_token_id)
        attention_mask = np.zeros_like(input_ids)
        for row, text in enumerate(texts):
            input_ids[row, : len(text)] = text
            attention_mask[row, : len(text)] = 1
        attention_mask[:, 0] = 1  # a text without any token is one of padding: no softmax over nothing
        return {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(attention_mask),
            "labels": self.labels[indices],
        }

    def _tokens(self, index: int) -> list[int]:
        row = self.rows[index]
        start, stop = self.tokens.bounds[row : row + 2]
        room = self.max_length - len(self.begin) - len(self.end)
        return [*self.begin, *self.tokens.records["id"][start : min(stop, start + room)].tolist(), *self.end]
