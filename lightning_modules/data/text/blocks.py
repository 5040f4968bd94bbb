"""Text as tokens, and blocks of them as batches for causal and masked language models.

Letters: B batch, T block size, N blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.data.seeded import BatchedSet, derive_seeds, epochs_and_indices

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

IGNORED = -100


class Tokens(NamedTuple):
    """A text as tokens one after the other, or cut into blocks (N, T)."""

    ids: NDArray[np.int32]
    characters: NDArray[np.int32]  # of the text that each stands for
    documents: NDArray[np.int32]  # the number of the document that each belongs to, from 1; 0 for padding

    def cut(self, block_size: int, pad_token_id: int) -> Tokens:
        """Return blocks of as many tokens; the last one is padded."""
        missing = -len(self.ids) % block_size
        padded = [np.pad(values, (0, missing)).reshape(-1, block_size) for values in self]
        padded[0].reshape(-1)[len(self.ids) :] = pad_token_id
        return Tokens(*padded)

    def take(self, blocks: NDArray[np.int64]) -> Tokens:
        """Return some of the blocks."""
        return Tokens(*(values[blocks] for values in self))


def tokens_of_rows(rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
    """Return the tokens of rows, and how many characters each stands for; their sum is the length of the row.

    A character that several tokens share, as bytes of it, counts for the first of them; what a tokenizer leaves out, as
    spaces between words, for the token after it.
    """
    found = tokenizer(rows["text"], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    characters = []
    for text, offsets in zip(rows["text"], found["offset_mapping"], strict=True):
        ends = np.maximum.accumulate([0, *(stop for _, stop in offsets)])
        ends[-1] = len(text)
        characters.append(np.diff(ends).tolist())
    return {"ids": found["input_ids"], "characters": characters}


def encode(
    rows: Dataset, tokenizer: PreTrainedTokenizerFast, begin: list[int], end: list[int], one_document: bool
) -> Tokens:
    """Return the column ``text`` as tokens: each row is a document, or all of them are one.

    ``datasets`` keeps the tokens of rows that it has read from a file.
    """
    arguments = {"tokenizer": tokenizer}
    encoded = rows.map(tokens_of_rows, batched=True, remove_columns=rows.column_names, fn_kwargs=arguments)
    table = encoded.with_format("arrow")[:]
    of_rows = table["ids"].combine_chunks()
    lengths = of_rows.value_lengths().to_numpy()
    if one_document:
        lengths = lengths.sum(keepdims=True)
    stops = np.cumsum(lengths)
    # At one place, a document ends before the next one begins.
    places = np.concatenate([np.repeat(stops, len(end)), np.repeat(stops - lengths, len(begin))])
    around = np.concatenate([np.tile(end, len(lengths)), np.tile(begin, len(lengths))])
    ids = np.insert(of_rows.flatten().to_numpy(), places, around)
    characters = np.insert(table["characters"].combine_chunks().flatten().to_numpy(), places, 0)
    documents = np.repeat(np.arange(1, len(lengths) + 1), lengths + len(begin) + len(end))
    return Tokens(ids.astype(np.int32), characters.astype(np.int32), documents.astype(np.int32))


@dataclass(eq=False, repr=False)
class Blocks(BatchedSet):
    """Blocks of tokens; a block's corruption is a function of (seed, epoch, index).

    Source: Devlin et al., "BERT", 2019, section 3.1 and appendix A.1.
    """

    tokens: Tokens  # (N, T) each
    masking: DataCollatorForLanguageModeling | None = None  # hides tokens of a masked objective; None for a causal one
    seed: int = 0  # of the corruption
    fixed: bool = False  # whether all epochs have the corruption of epoch 0, as for validation

    def __len__(self) -> int:
        return len(self.tokens.ids)

    def without_augmentation(self) -> Blocks:
        """Return the same blocks, uncorrupted and each with all its tokens to predict."""
        return replace(self, masking=None)

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch.

        Returns:
            ``input_ids`` and ``labels`` (B, T) int64, −100 where nothing is predicted; ``characters`` (B, T) int32
            that the labels stand for; ``segment_ids`` (B, T) int64, 0 for padding, where a block of the batch is
            padded or holds several documents.
        """
        epochs, indices = epochs_and_indices(keys)
        numbers, characters, documents = self.tokens.take(indices)
        ids = torch.from_numpy(numbers.astype(np.int64))
        begins = np.diff(documents, prepend=0) != 0  # nothing is before these that they could be predicted from
        segments = np.where(documents > 0, np.cumsum(begins, axis=1), 0)
        if self.masking is None:
            inputs, labels = ids, ids.masked_fill(torch.from_numpy(begins | (documents == 0)), IGNORED)
        else:
            inputs, labels = self._mask(ids, derive_seeds(self.seed, 0 if self.fixed else epochs, indices))
        counted = torch.from_numpy(characters).masked_fill(labels == IGNORED, 0)
        batch = {"input_ids": inputs, "labels": labels, "characters": counted}
        if (segments != 1).any():
            batch["segment_ids"] = torch.from_numpy(segments)
        return batch

    def _mask(self, ids: Tensor, seeds: NDArray[np.uint64]) -> tuple[Tensor, Tensor]:
        """Return ids (B, T) with some replaced, and labels (B, T); a block has a generator of its own."""
        inputs, labels = ids.clone(), ids.clone()
        special = torch.isin(ids, torch.tensor(self.masking.tokenizer.all_special_ids))
        for row, seed in enumerate(seeds):
            self.masking.generator = torch.Generator().manual_seed(int(seed >> np.uint64(1)))
            inputs[row], labels[row] = self.masking.torch_mask_tokens(inputs[row], special_tokens_mask=special[row])
        return inputs, labels
