"""`TextClassificationData`: classified texts from the hub or a folder, as padded batches of three parts.

Letters: N texts, B batch, T longest text of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.data.labelled import LabelledData
from lightning_modules.data.seeded import BatchedSet, epochs_and_indices
from lightning_modules.data.text.corpus import TEXTS, Column, Texts
from lightning_modules.data.text.encoding import Tokens, encode
from lightning_modules.data.text.tokenizer import Tokenized, Tokenizer
from structured_init.errors import StructuredInitError


class Sentences(BatchedSet):
    """Texts, rows (N,) of a split, between the tokens that begin and end one, and their classes (N,).

    A text with its special tokens has ``max_length`` at most; longer ones lose their end.
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

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch: ``input_ids`` (B, T) int64, ``attention_mask`` (B, T) int64 and ``labels`` (B,) int64."""
        _, indices = epochs_and_indices(keys)
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


class TextClassificationData(LabelledData, Tokenized):
    """Texts and classes; batches are dicts as `Sentences` describes them.

    The order is a function of (seed, epoch). Labels that are strings are numbered in the order of the training split's
    sorted names.

    Args:
        name: a Parquet file, a folder of them, or a hub name (``stanfordnlp/sst2``). The folder that the environment
            variable STRUCTURED_INIT_DATA names is searched before the hub, by the last part of the name.
        text_column: found by its name or type where null.
        tokenizer: ``characters``, ``bytes``; ``bpe`` (byte-level) or ``wordpiece`` to train one on the train split
            without its validation part, whatever ``fraction`` is; a ``tokenizer.json`` or the folder of a saved
            tokenizer; or a hub name.
        vocab_size: of a tokenizer that is trained.
        max_length: of a text in tokens; longer ones lose their end.
        pad_to_max_length: whether every batch is so long; otherwise as long as its longest text.
        data: of :class:`LabelledData` and :class:`SeededData`.

    Raises:
        StructuredInitError: an argument out of its range; when the data is opened: no such dataset, column, split or
            tokenizer, text that is not UTF-8, a label outside the classes, a class with too few texts, a vocabulary
            too small, a batch larger than the training part.
    """

    unit = "texts"
    kind = TEXTS

    def __init__(
        self,
        name: str = "stanfordnlp/sst2",
        text_column: str | None = None,
        tokenizer: str = "wordpiece",
        vocab_size: int = 8192,
        max_length: int = 128,
        pad_to_max_length: bool = False,
        **data: Any,
    ) -> None:
        super().__init__(name, **data)
        self.input_column = self.text_column = text_column
        self.tokenizer_name, self._vocab_size = tokenizer, vocab_size
        self.max_length, self.pad_to_max_length = max_length, pad_to_max_length
        if max_length < 3:
            raise StructuredInitError(f"max_length={max_length} is less than 3: no room between the special tokens")

    @property
    def block_size(self) -> int:
        """Positions that a model needs."""
        return self.max_length

    @cached_property
    def train_set(self) -> Sentences:
        return self._sentences(self.train_split, self.parts[1])

    @cached_property
    def val_set(self) -> Sentences | None:
        return self._sentences(self.val_split, self.parts[0]) if self.val_fraction > 0 else None

    @cached_property
    def test_set(self) -> Sentences:
        return self._sentences(self.test_split, self.test_rows)

    def prepare_data(self) -> None:
        """Download, train the tokenizer and tokenize on one process before the others look."""
        _ = self.train_set

    def training_text(self) -> Texts:
        keep = np.ones(len(self.source.split(self.train_split)), dtype=bool)
        keep[self.parts[0] if self.val_split == self.train_split else []] = False
        return Texts([text for text, kept in zip(self._texts(self.train_split), keep, strict=True) if kept])

    def _texts(self, split: str) -> Iterator[str]:
        return iter(Column(self.source.split(split), self.source.input_column, f"'{split}' in '{self.name}'"))

    def _sentences(self, split: str, rows: NDArray[np.int64]) -> Sentences:
        tokens = encode(Texts(list(self._texts(split))), self.tokenizer, "none")
        labels = self.source.labels(split)[rows]
        return Sentences(tokens, rows, labels, self.tokenizer, self.max_length, self.pad_to_max_length)
