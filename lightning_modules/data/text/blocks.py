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
        shape = len(keys), self.block_size
        batch = {
            "input_ids": np.full(shape, self.pad_token_id),
            "labels": np.full(shape, IGNORED),
            "characters": np.zeros(shape, dtype=np.int32),
            "bytes": np.zeros(shape, dtype=np.int32),
        }
        segments = np.zeros(shape, dtype=np.int64)
        for row, key in enumerate(keys):
            self._fill({name: values[row] for name, values in batch.items()}, segments[row], key)
        if (segments != 1).any():
            batch["segment_ids"] = segments
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _fill(self, row: dict[str, NDArray], segments: NDArray[np.int64], key: int | tuple[int, int]) -> None:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        pieces = slice(*self.layout.first[index : index + 2])
        spans = list(zip(self.layout.starts[pieces].tolist(), self.layout.stops[pieces].tolist(), strict=True))
        records = np.concatenate([self.tokens.records[start:stop] for start, stop in spans])
        ids = records["id"].astype(np.int64)
        lengths = np.array([stop - start for start, stop in spans])
        segments[: len(ids)] = 1 if self.cross_documents else np.repeat(np.arange(1, len(spans) + 1), lengths)
        if self.masking is None:
            predicted = np.ones(len(ids), dtype=bool)
            predicted[0 if self.cross_documents else np.cumsum(lengths) - lengths] = False  # nothing is before them
            row["input_ids"][: len(ids)] = ids
        else:
            row["input_ids"][: len(ids)], predicted = self.masking(ids, epoch, self.first_index + index)
        row["labels"][: len(ids)] = np.where(predicted, ids, IGNORED)
        for name in ("characters", "bytes"):
            row[name][: len(ids)] = np.where(predicted, records[name], 0)
