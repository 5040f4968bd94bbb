"""Packing: which tokens make which block.

Letters: D documents, P pieces of documents, N blocks, T block size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Layout:
    """Blocks made of pieces of documents.

    Attributes:
        starts: first token of each piece, (P,).
        stops: last token, excluded, (P,).
        first: the first piece of each block, and the number of pieces, (N + 1,).
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    first: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first) - 1


def choose(bounds: NDArray[np.int64], budget: int, seed: int) -> NDArray[np.int64]:
    """Return first and last token (excluded) of documents that hold ``budget`` tokens in all, (D', 2), in order.

    Drawn by the seed, so that a smaller budget is contained in a larger; the document drawn last is cut.

    Args:
        bounds: where each document begins, and the end of the last, (D + 1,).
        budget: number of tokens; all documents where there are no more.
        seed: of the draw.
    """
    spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
    lengths = spans[:, 1] - spans[:, 0]
    order = np.random.default_rng(seed).permutation(len(spans))
    before = np.zeros_like(lengths)
    before[order] = np.cumsum(lengths[order]) - lengths[order]
    spans[:, 1] = spans[:, 0] + np.clip(budget - before, 0, lengths)
    return spans[spans[:, 1] > spans[:, 0]]


def pack(spans: NDArray[np.int64], block_size: int) -> Layout:
    """Put documents one after the other and cut every ``block_size`` tokens; only the last block may be shorter.

    Args:
        spans: first and last token (excluded) of each document, (D, 2).
        block_size: T.
    """
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
    """Give each document blocks of its own, the last of them shorter.

    Args:
        spans: first and last token (excluded) of each document, (D, 2).
        block_size: T.
    """
    counts = -(-(spans[:, 1] - spans[:, 0]) // block_size)
    document = np.repeat(np.arange(len(spans)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = spans[document, 0] + number * block_size
    stops = np.minimum(starts + block_size, spans[document, 1])
    return Layout(starts, stops, np.arange(len(starts) + 1))
