"""`TextClassificationData`: classified texts from the hub or a folder, as padded batches of three parts.

Letters: N texts, B batch, T longest text of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.data.labelled import LabelledData
from lightning_modules.data.seeded import BatchedSet, epochs_and_indices
from lightning_modules.data.text.corpus import TEXTS
from lightning_modules.data.text.tokenizer import Tokenized
from structured_init.util.arguments import check_whole

if TYPE_CHECKING:
    from transformers import DataCollatorWithPadding


@dataclass(eq=False, repr=False)
class Sentences(BatchedSet):
    """Texts as tokens, between those that begin and end one, and their classes."""

    ids: list[list[int]]
    labels: NDArray[np.int64]  # (N,)
    collator: DataCollatorWithPadding

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, Tensor]:
        """Return a batch: ``input_ids`` (B, T) int64, ``attention_mask`` (B, T) int64 and ``labels`` (B,) int64."""
        _, indices = epochs_and_indices(keys)
        return dict(self.collator([{"input_ids": self.ids[i], "labels": int(self.labels[i])} for i in indices]))


class TextClassificationData(LabelledData, Tokenized):
    """Texts and classes; batches are dicts as `Sentences` describes them.

    The order is a function of (seed, epoch). Labels that are strings are numbered in the order of the training split's
    sorted names.

    Args:
        name: a Parquet file, a folder of them, or a hub name (``stanfordnlp/sst2``). The folder that the environment
            variable STRUCTURED_INIT_DATA names is searched before the hub, by the last part of the name.
        text_column: found by its name or type where null.
        tokenizer: ``characters``; ``bpe`` (byte-level) to train one on the train split without its validation part,
            whatever ``fraction`` is; the folder of a saved tokenizer; or a hub name.
        vocab_size: of a tokenizer that is trained.
        max_length: of a text in tokens; longer ones lose their end. A batch is as long as its longest text.
        data: of :class:`LabelledData` and :class:`SeededData`.

    Raises:
        StructuredInitError: an argument out of its range; when the data is opened: no such dataset, column, split or
            tokenizer, a label outside the classes, a class with too few texts, a batch larger than the training part.
    """

    unit = "texts"
    kind = TEXTS

    def __init__(
        self,
        name: str = "stanfordnlp/sst2",
        text_column: str | None = None,
        tokenizer: str = "bpe",
        vocab_size: int = 8192,
        max_length: int = 128,
        **data: Any,
    ) -> None:
        super().__init__(name, **data)
        self.input_column = self.text_column = text_column
        self.tokenizer_name, self._vocab_size = tokenizer, vocab_size
        self.max_length = max_length
        check_whole("TextClassificationData", vocab_size=vocab_size)
        check_whole("TextClassificationData", least=3, max_length=max_length)  # room between two special tokens

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
        """Download and train the tokenizer on one process before the others look."""
        _ = self.tokenizer

    def training_texts(self) -> list[str]:
        rows = np.arange(len(self.source.split(self.train_split)))
        if self.val_split == self.train_split:
            rows = np.setdiff1d(rows, self.parts[0])
        return self._texts(self.train_split, rows)

    def _texts(self, split: str, rows: NDArray[np.int64]) -> list[str]:
        column = self.source.split(split)[self.source.input_column][:]
        return [column[row] or "" for row in rows]

    def _sentences(self, split: str, rows: NDArray[np.int64]) -> Sentences:
        from transformers import DataCollatorWithPadding

        begin, end = self.ends()
        room = self.max_length - len(begin) - len(end)
        texts = self._texts(split, rows)
        found = self.tokenizer(texts, add_special_tokens=False, truncation=True, max_length=room)
        ids = [[*begin, *numbers, *end] for numbers in found["input_ids"]]
        return Sentences(ids, self.source.labels(split)[rows], DataCollatorWithPadding(self.tokenizer))
