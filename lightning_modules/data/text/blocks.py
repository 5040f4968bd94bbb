"""`Blocks`: packed text as batches for causal and masked language models.

Letters: B batch, T block size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from lightning_modules.data.text.encoding import Tokens
from lightning_modules.data.text.groups import Group
from lightning_modules.data.text.masking import Masking
from lightning_modules.data.text.packing import Layout

IGNORED = -100


class Blocks(Dataset):
    """Blocks of tokens; a block's corruption is a function of (seed, epoch, index).

    Args:
        tokens: all of them.
        layout: which of them make which block.
        block_size: T.
        pad_token_id: what fills a block that is shorter.
        masking: of a masked objective; None for a causal one.
        cross_documents: a block's documents see each other, and the first token of each is predicted.
        first_index: number of the first block, on which its corruption depends.
    """

    def __init__(
        self,
        tokens: Tokens | Group,
        layout: Layout,
        block_size: int,
        *,
        pad_token_id: int,
        masking: Masking | None = None,
        cross_documents: bool = False,
        first_index: int = 0,
    ) -> None:
        self.tokens, self.layout, self.block_size = tokens, layout, block_size
        self.pad_token_id, self.masking, self.cross_documents = pad_token_id, masking, cross_documents
        self.first_index = first_index

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.__getitems__([key]).items()}

    def without_augmentation(self) -> Blocks:
        """Return the same blocks, uncorrupted and each with all its tokens to predict."""
        plain = copy.copy(self)
        plain.masking = None
        return plain

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch.

        Args:
            keys: pairs (epoch, index); an index alone belongs to epoch 0.

        Returns:
            ``input_ids`` and ``labels`` (B, T) int64, −100 where nothing is predicted; ``characters`` and ``bytes``
            (B, T) int32 that the labels stand for; ``segment_ids`` (B, T) int64, 0 for padding, where a block of the
            batch is padded or holds several documents that do not see each other.
        """
        pairs = np.array([key if isinstance(key, tuple) else (0, key) for key in keys], dtype=np.int64)
        epochs, indices = pairs.T
        source, place, segments, begins = self._gather(indices)
        shape = len(keys), self.block_size
        records = self.tokens.records[source]
        ids = _spread(records["id"].astype(np.int64), place, shape, self.pad_token_id)
        present = segments > 0
        if self.masking is None:
            inputs, predicted = ids, present & ~begins
        else:
            inputs, predicted = self.masking(ids, present, epochs, self.first_index + indices)
        batch = {"input_ids": inputs, "labels": np.where(predicted, ids, IGNORED)}
        for name in ("characters", "bytes"):
            batch[name] = np.where(predicted, _spread(records[name], place, shape, 0), 0)
        if (segments != 1).any():
            batch["segment_ids"] = segments
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _gather(
        self, indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return which of all tokens the blocks hold and where they stand, for N tokens in B blocks.

        Returns:
            Numbers of the tokens, (N,); their places in the flattened batch, (N,); the segments, (B, T); and which
            tokens have nothing before them that they could be predicted from, (B, T).
        """
        first = self.layout.first[indices]
        counts = self.layout.first[indices + 1] - first
        pieces, row = _ranges(first, counts), np.repeat(np.arange(len(indices)), counts)
        lengths = self.layout.stops[pieces] - self.layout.starts[pieces]
        before = np.cumsum(lengths) - lengths
        in_row = before - before[np.cumsum(counts) - counts][row]  # a piece's first place in its block
        shape = len(indices), self.block_size
        place = _ranges(row * self.block_size + in_row, lengths)
        number = np.ones_like(pieces) if self.cross_documents else pieces - first[row] + 1
        segments = _spread(np.repeat(number, lengths), place, shape, 0)
        begins = np.zeros(shape, dtype=bool)
        begins[row, 0 if self.cross_documents else in_row] = True
        return _ranges(self.layout.starts[pieces], lengths), place, segments, begins


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start, start + 1, … of each, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _spread(values: NDArray, place: NDArray[np.int64], shape: tuple[int, int], fill: int) -> NDArray:
    """Return a batch with values at places of its flattened form, and ``fill`` elsewhere."""
    spread = np.full(shape, fill, dtype=values.dtype)
    spread.reshape(-1)[place] = values
    return spread
