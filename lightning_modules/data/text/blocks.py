"""Packed text as batches for causal and masked language models: which tokens make a block, and which are hidden.

Letters: B batch, T block size; D documents, P pieces of documents, N blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.data.seeded import BatchedSet, derive_seeds, epochs_and_indices
from lightning_modules.data.text.encoding import Tokens
from lightning_modules.data.text.tokenizer import Tokenizer
from structured_init.errors import StructuredInitError


@dataclass
class Layout:
    """Blocks made of pieces of documents."""

    starts: NDArray[np.int64]  # first token of each piece, (P,)
    stops: NDArray[np.int64]  # last token, excluded, (P,)
    first: NDArray[np.int64]  # the first piece of each block, and the number of pieces, (N + 1,)

    def __len__(self) -> int:
        return len(self.first) - 1


def choose(bounds: NDArray[np.int64], budget: int, seed: int) -> NDArray[np.int64]:
    """Return first and last token (excluded) of documents that hold ``budget`` tokens in all, (D', 2), in order.

    Drawn by the seed, so that a smaller budget is contained in a larger; the document drawn last is cut. ``bounds`` is
    where each document begins, and the end of the last, (D + 1,).
    """
    spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
    lengths = spans[:, 1] - spans[:, 0]
    order = np.random.default_rng(seed).permutation(len(spans))
    before = np.zeros_like(lengths)
    before[order] = np.cumsum(lengths[order]) - lengths[order]
    spans[:, 1] = spans[:, 0] + np.clip(budget - before, 0, lengths)
    return spans[spans[:, 1] > spans[:, 0]]


def pack(spans: NDArray[np.int64], block_size: int) -> Layout:
    """Put documents, spans (D, 2), one after the other and cut every T tokens; only the last block may be shorter."""
    lengths = spans[:, 1] - spans[:, 0]
    before = np.cumsum(lengths) - lengths  # position of each document in the stream of all
    total = int(lengths.sum())
    cuts = np.union1d(before, np.arange(0, total, block_size))
    document = np.searchsorted(before, cuts, side="right") - 1
    starts = spans[document, 0] + cuts - before[document]
    stops = starts + np.diff(np.append(cuts, total))
    first = np.searchsorted(cuts, np.arange(0, total, block_size))
    return Layout(starts, stops, np.append(first, len(cuts)))


def rows(spans: NDArray[np.int64], block_size: int) -> Layout:
    """Give each document, spans (D, 2), blocks of its own, the last of them shorter."""
    counts = -(-(spans[:, 1] - spans[:, 0]) // block_size)
    document = np.repeat(np.arange(len(spans)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = spans[document, 0] + number * block_size
    stops = np.minimum(starts + block_size, spans[document, 1])
    return Layout(starts, stops, np.arange(len(starts) + 1))


@dataclass
class Masking:
    """Chooses tokens to predict, and hides most of them: 80 % masked, 10 % another token, 10 % as they are.

    At least one token of a block is chosen. A tokenizer without a mask token is refused.

    Source: Devlin et al., "BERT", 2019, section 3.1 and appendix A.1.
    """

    tokenizer: Tokenizer  # its special tokens are neither chosen nor drawn
    probability: float  # that a token is chosen, in (0, 1]
    seed: int  # of the choice
    fixed: bool = False  # whether all epochs have the corruption of epoch 0, as for validation

    def __post_init__(self) -> None:
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
        """Return ids (B, T) with some replaced, and which are to be predicted; a block does not depend on the others.

        ``present`` (B, T) is false for padding; ``epochs`` and ``indices`` of the blocks are (B,).
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


IGNORED = -100


@dataclass(eq=False, repr=False)
class Blocks(BatchedSet):
    """Blocks of tokens; a block's corruption is a function of (seed, epoch, index)."""

    tokens: Tokens
    layout: Layout  # which of them make which block
    block_size: int  # T
    _: KW_ONLY
    pad_token_id: int  # what fills a block that is shorter
    masking: Masking | None = None  # of a masked objective; None for a causal one
    cross_documents: bool = False  # a block's documents see each other, and the first token of each is predicted

    def __len__(self) -> int:
        return len(self.layout)

    def without_augmentation(self) -> Blocks:
        """Return the same blocks, uncorrupted and each with all its tokens to predict."""
        plain = copy.copy(self)
        plain.masking = None
        return plain

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch.

        Returns:
            ``input_ids`` and ``labels`` (B, T) int64, −100 where nothing is predicted; ``characters`` and ``bytes``
            (B, T) int32 that the labels stand for; ``segment_ids`` (B, T) int64, 0 for padding, where a block of the
            batch is padded or holds several documents that do not see each other.
        """
        epochs, indices = epochs_and_indices(keys)
        source, place, segments, begins = self._gather(indices)
        shape = len(keys), self.block_size
        records = self.tokens.records[source]
        ids = _spread(records["id"].astype(np.int64), place, shape, self.pad_token_id)
        present = segments > 0
        if self.masking is None:
            inputs, predicted = ids, present & ~begins
        else:
            inputs, predicted = self.masking(ids, present, epochs, indices)
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
