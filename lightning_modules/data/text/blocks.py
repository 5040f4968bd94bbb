"""Text as tokens, and blocks of them as batches for causal and masked language models.

Letters: B batch, T block size, N blocks, M tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.data.seeded import BatchedSet, derive_seeds, epochs_and_indices

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

IGNORED = -100
# A token: its number, how many characters of the text it stands for, and its document, from 1; 0 for padding.
TOKEN = np.dtype([("id", np.int32), ("characters", np.int32), ("document", np.int32)])
Tokens = NDArray[np.void]  # of TOKEN: (M,), or (N, T) in blocks


def cut(tokens: Tokens, block_size: int, pad_token_id: int) -> Tokens:
    """Return blocks (N, T) of tokens (M,); the last one is padded."""
    blocks = np.zeros((-(-len(tokens) // block_size), block_size), TOKEN)
    blocks["id"] = pad_token_id
    blocks.reshape(-1)[: len(tokens)] = tokens
    return blocks


def tokens_of_rows(rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
    """Return the tokens of rows, and how many characters each stands for: all, those of its row.

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
    """Return the column ``text`` as tokens (M,): each row is a document, or all of them are one.

    Each document stands between the tokens that begin and end one, which stand for no character. ``datasets`` keeps the
    tokens of rows that it has read from a file.
    """
    encoded = rows.map(
        tokens_of_rows, batched=True, remove_columns=rows.column_names, fn_kwargs={"tokenizer": tokenizer}
    )
    table = encoded.with_format("arrow")[:]
    ids = table["ids"].combine_chunks()
    lengths = ids.value_lengths().to_numpy()
    if one_document:
        lengths = lengths.sum(keepdims=True)
    documents = np.arange(1, len(lengths) + 1)
    tokens = np.zeros(lengths.sum(), TOKEN)
    tokens["id"] = ids.flatten().to_numpy()
    tokens["characters"] = table["characters"].combine_chunks().flatten().to_numpy()
    tokens["document"] = np.repeat(documents, lengths)
    around = np.zeros((len(documents), len(begin) + len(end)), TOKEN)
    around["id"] = [*begin, *end]
    around["document"] = documents[:, None]
    stops = np.cumsum(lengths)
    places = np.repeat([stops - lengths, stops], [len(begin), len(end)], axis=0).T
    return np.insert(tokens, places.ravel(), around.ravel())


@dataclass(eq=False, repr=False)
class Blocks(BatchedSet):
    """Blocks of tokens; a block's corruption is a function of (seed, epoch, index).

    Source: Devlin et al., "BERT", 2019, section 3.1 and appendix A.1.
    """

    tokens: Tokens  # (N, T)
    masking: DataCollatorForLanguageModeling | None = None  # hides tokens of a masked objective; None for a causal one
    seed: int = 0  # of the corruption
    fixed: bool = False  # whether all epochs have the corruption of epoch 0, as for validation

    def __len__(self) -> int:
        return len(self.tokens)

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
        blocks = self.tokens[indices]
        ids = torch.from_numpy(blocks["id"].astype(np.int64))
        # Nothing stands before a document's first token that it could be predicted from.
        begins = np.diff(blocks["document"], prepend=0) != 0
        padding = blocks["document"] == 0
        segments = np.where(padding, 0, np.cumsum(begins, axis=1))
        if self.masking is None:
            inputs, labels = ids, ids.masked_fill(torch.from_numpy(begins | padding), IGNORED)
        else:
            inputs, labels = self._mask(ids, derive_seeds(self.seed, 0 if self.fixed else epochs, indices))
        characters = torch.from_numpy(blocks["characters"].copy()).masked_fill(labels == IGNORED, 0)
        batch = {"input_ids": inputs, "labels": labels, "characters": characters}
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
