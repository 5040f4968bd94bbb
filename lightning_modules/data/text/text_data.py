"""`TextData`: text from the hub, a file or the package, as batches for causal and masked language models."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from lightning_modules.data.seeded import SeededData, check_fractions
from lightning_modules.data.text.blocks import Blocks, cut, encode
from lightning_modules.data.text.corpus import Corpus, carve, open_corpus
from lightning_modules.data.text.tokenizer import Tokenized
from structured_init.util.arguments import check_known, check_share, check_whole
from structured_init.util.errors import StructuredInitError


class TextData(SeededData, Tokenized):
    """A corpus as blocks of tokens; batches are dicts of (B, T), T the ``block_size``.

    ``input_ids`` and ``labels``, the same tokens, not shifted, as transformers' models take them: −100 where nothing is
    predicted, as at a document's first token; ``characters`` that the labels stand for; and, where a block is padded
    or holds several documents, ``segment_ids``, 0 for padding.

    Documents, between the tokens that begin and end one, are joined and cut every T tokens. Each token is in one block
    once an epoch. The order and the corruption are functions of (seed, epoch, index): they do not depend on the number
    of workers, and leave the global random states alone. A part that the corpus lacks is carved out of train, by
    document, or out of a single document by contiguous lines.

    Args:
        name: ``python-docs``, a text or Parquet file, a folder of them (``train-*``, ``validation-*``, ``test-*``), or
            a hub name (``Salesforce/wikitext``). The folder that the environment variable STRUCTURED_INIT_DATA names is
            searched before the hub, by the last part of the name or a configuration that begins with it.
        config: the hub's configuration of the dataset.
        text_column: found by its name or type where null.
        documents: ``row``: each row or line is a document; ``file``: all rows or lines of a split are one. Where null,
            rows of datasets are documents, and lines of text files are not.
        tokenizer: ``characters``; ``bpe`` (byte-level) to train one on the training part, whatever ``fraction`` is; the
            folder of a saved tokenizer; or a hub name.
        vocab_size: of a tokenizer that is trained.
        objective: ``causal`` or ``masked``.
        mask_probability: of each token to be predicted by a masked model.
        block_size: tokens in a block.
        fraction: share of the training part's blocks to train on, in (0, 1], drawn by ``split_seed``.
        val_fraction: share of train to validate on where the corpus has no such split, in [0, 1); 0 for no validation.
        test_fraction: share of train to test on where the corpus has no such split, in [0, 1).
        split_seed: of the parts and of the validation's corruption, which runs of different seeds share.
        data: of :class:`SeededData`; ``seed`` is that of the corruption, too.

    Raises:
        StructuredInitError: an argument out of its range; when the data is opened: no such corpus, column, split or
            tokenizer, text that is empty or not UTF-8, a batch larger than the training part.
    """

    @property
    def unit(self) -> str:
        """What is counted: with the length, since a long one leaves few."""
        return f"blocks of block_size={self.block_size}"

    def __init__(
        self,
        name: str = "python-docs",
        config: str | None = None,
        text_column: str | None = None,
        documents: str | None = None,
        tokenizer: str = "bpe",
        vocab_size: int = 4096,
        objective: str = "causal",
        mask_probability: float = 0.15,
        block_size: int = 256,
        fraction: float = 1.0,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        split_seed: int = 0,
        **data: Any,
    ) -> None:
        super().__init__(name, **data)
        self.config, self.text_column, self.documents = config, text_column, documents
        self.tokenizer_name, self._vocab_size = tokenizer, vocab_size
        self.objective, self.mask_probability = objective, mask_probability
        self.block_size = block_size
        self.fraction, self.val_fraction, self.test_fraction = fraction, val_fraction, test_fraction
        self.split_seed = split_seed
        check_fractions(fraction=fraction, mask_probability=mask_probability)
        check_share("TextData", val_fraction=val_fraction, test_fraction=test_fraction)
        check_known("objective", objective, ("causal", "masked"))
        check_known("documents", documents or "row", ("row", "file"))
        check_whole("TextData", vocab_size=vocab_size)
        check_whole("TextData", least=2, block_size=block_size)

    @cached_property
    def corpus(self) -> Corpus:
        """The rows of each part, nothing of them tokenized."""
        found = open_corpus(self.name, self.config, self.text_column, self.documents)
        return carve(found, {"test": self.test_fraction, "val": self.val_fraction}, self.split_seed)

    def training_texts(self) -> list[str]:
        return self.corpus.parts["train"]["text"][:]

    @cached_property
    def train_set(self) -> Blocks:
        blocks = self._blocks("train", self.seed, fixed=False)
        drawn = np.random.default_rng(self.split_seed).permutation(len(blocks))
        chosen = np.sort(drawn[: round(self.fraction * len(blocks))])
        return replace(blocks, tokens=blocks.tokens[chosen])

    @cached_property
    def val_set(self) -> Blocks | None:
        return self._blocks("val", self.split_seed, fixed=True) if "val" in self.corpus.parts else None

    @cached_property
    def test_set(self) -> Blocks:
        if "test" not in self.corpus.parts:
            raise StructuredInitError(f"corpus '{self.name}' has no split to test on: give a test_fraction")
        return self._blocks("test", self.split_seed, fixed=True)

    def _blocks(self, part: str, seed: int, fixed: bool) -> Blocks:
        tokens = encode(self.corpus.parts[part], self.tokenizer, *self.ends(), self.corpus.one_document)
        masking = None
        if self.objective == "masked":
            from transformers import DataCollatorForLanguageModeling

            masking = DataCollatorForLanguageModeling(self.tokenizer, mlm_probability=self.mask_probability)
        return Blocks(cut(tokens, self.block_size, self.tokenizer.pad_token_id or 0), masking, seed, fixed)

    def prepare_data(self) -> None:
        """Download, train the tokenizer and tokenize on one process before the others look."""
        for part in {"train", "val"} & self.corpus.parts.keys():
            self._blocks(part, 0, fixed=True)  # which `datasets` keeps; the seed is agreed on later

    def state_dict(self) -> dict[str, str]:
        """Return what identifies the tokenizer, and with it the text that it was made of, for the checkpoint."""
        return {"tokenizer": hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint of another tokenizer, whose embeddings would belong to other tokens."""
        if state_dict["tokenizer"] != self.state_dict()["tokenizer"]:
            raise StructuredInitError(
                f"the checkpoint was made with another tokenizer than that of '{self.name}' here: give the same data"
            )
