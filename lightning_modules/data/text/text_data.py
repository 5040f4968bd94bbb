"""`TextData`: text from the hub, a file or the package, as batches for causal and masked language models."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lightning_modules.data.seeded import SeededData, check_carved, check_fractions
from lightning_modules.data.text.blocks import Blocks, Masking, choose, pack, rows
from lightning_modules.data.text.corpus import Documents, Parts, check_rule, open_corpus
from lightning_modules.data.text.encoding import ADDED, Tokens, encode
from lightning_modules.data.text.tokenizer import Tokenized
from structured_init.arguments import check_known, check_whole
from structured_init.errors import StructuredInitError

OBJECTIVES = ("causal", "masked")


class TextData(SeededData, Tokenized):
    """A corpus as blocks of tokens; batches are dicts of (B, T), T the ``block_size``.

    ``input_ids`` and ``labels``, the same tokens, not shifted, as transformers' models take them: −100 where nothing is
    predicted, as at a document's first token; ``characters`` and ``bytes`` that the labels stand for; and, where a
    block is padded or holds several documents, ``segment_ids``, 0 for padding.

    The order and the corruption are functions of (seed, epoch, index): they do not depend on the number of workers,
    and leave the global random states alone. Each token is in one block once an epoch. A part that the corpus lacks is
    carved out of train, by document, or out of a single document by contiguous spans.

    Args:
        name: ``python-docs``, a text or Parquet file, a folder of them (``train-*``, ``validation-*``, ``test-*``), or
            a hub name (``Salesforce/wikitext``). The folder that the environment variable STRUCTURED_INIT_DATA names is
            searched before the hub, by the last part of the name or a configuration that begins with it.
        config: the hub's configuration of the dataset.
        text_column: found by its name or type where null.
        documents: ``row``: each row or line is a document; ``file``: each file, or all rows of a split; otherwise a
            regular expression: a document begins at every row in which it is found. Rows of datasets and whole files
            where null.
        train_split: split to train on.
        val_split: split to validate on; where null, the corpus's own, else carved out of train.
        test_split: split to test on; where null, ``test``, else carved out of train.
        tokenizer: ``characters``, ``bytes``; ``bpe`` (byte-level) or ``wordpiece`` to train one on the training part,
            whatever ``fraction`` is; a ``tokenizer.json`` or the folder of a saved tokenizer; or a hub name.
        vocab_size: of a tokenizer that is trained.
        objective: ``causal`` or ``masked``.
        mask_probability: of each token to be predicted by a masked model.
        block_size: tokens in a block.
        packing: fill blocks with several documents; otherwise each document has blocks of its own, padded.
        cross_documents: let documents in one block see each other.
        document_tokens: which special tokens each document gets: begin, end, both or none, as the tokenizer has them.
        fraction: share of the training part's tokens to train on, in (0, 1], drawn by document.
        max_tokens: number of tokens to train on at most.
        val_fraction: share of train to validate on where the corpus has no such split, in [0, 1); 0 for no validation.
        test_fraction: share of train to test on where the corpus has no such split, in [0, 1).
        split_seed: of the parts and of the validation's corruption, which runs of different seeds share.
        data: of :class:`SeededData`; ``seed`` is that of the corruption, too.

    Raises:
        StructuredInitError: an argument out of its range; when the data is opened: no such corpus, column, split or
            tokenizer, text that is empty or not UTF-8, a vocabulary too small, a batch larger than the training part.
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
        train_split: str = "train",
        val_split: str | None = None,
        test_split: str | None = None,
        tokenizer: str = "bpe",
        vocab_size: int = 4096,
        objective: str = "causal",
        mask_probability: float = 0.15,
        block_size: int = 256,
        packing: bool = True,
        cross_documents: bool = False,
        document_tokens: str = "both",
        fraction: float = 1.0,
        max_tokens: int | None = None,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        split_seed: int = 0,
        **data: Any,
    ) -> None:
        super().__init__(name, **data)
        self.config, self.text_column, self._documents = config, text_column, documents
        self.train_split, self._val_split, self._test_split = train_split, val_split, test_split
        self.tokenizer_name, self._vocab_size = tokenizer, vocab_size
        self.objective, self.mask_probability = objective, mask_probability
        self.block_size, self.packing, self.cross_documents = block_size, packing, cross_documents
        self.document_tokens = document_tokens
        self.fraction, self.max_tokens = fraction, max_tokens
        self.val_fraction, self.test_fraction = val_fraction, test_fraction
        self.split_seed = split_seed
        check_fractions(fraction=self.fraction, mask_probability=self.mask_probability)
        check_carved(val_fraction=self.val_fraction, test_fraction=self.test_fraction)
        check_known("objective", self.objective, OBJECTIVES)
        check_whole("TextData", vocab_size=self._vocab_size)
        check_whole("TextData", least=2, block_size=self.block_size)
        check_whole("TextData", least=2, null=True, max_tokens=self.max_tokens)
        check_known("document_tokens", self.document_tokens, ADDED)
        check_rule(self._documents or "row")

    def training_text(self) -> Documents:
        return self.parts["train"]

    @cached_property
    def parts(self) -> Parts:
        """The documents of each part, nothing of them tokenized."""
        corpus = open_corpus(self.name, self.config, self.text_column)
        splits = {"train": self.train_split, "val": self._val_split, "test": self._test_split}
        shares = {"val": self.val_fraction, "test": self.test_fraction}
        return Parts(corpus, self._documents or corpus.rule, splits, shares, self.split_seed)

    @cached_property
    def train_set(self) -> Blocks:
        tokens = self._tokens("train")
        budget = round(self.fraction * len(tokens))
        budget = budget if self.max_tokens is None else min(budget, self.max_tokens)
        return self._blocks(tokens, budget, self._masking(self.seed))

    @cached_property
    def val_set(self) -> Blocks | None:
        if "val" not in self.parts:
            return None
        return self._blocks(self._tokens("val"), None, self._masking(self.split_seed, fixed=True))

    @cached_property
    def test_set(self) -> Blocks:
        return self._blocks(self._tokens("test"), None, self._masking(self.split_seed, fixed=True))

    def prepare_data(self) -> None:
        """Download, train the tokenizer and tokenize on one process before the others look."""
        _ = self.train_set, self.val_set

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.__dict__.pop("train_set", None)  # its corruption depends on the seed
        super().setup(stage)

    def state_dict(self) -> dict[str, str]:
        """Return what identifies the text and the tokenizer, for the checkpoint."""
        return {"training_text": self.parts["train"].digest, "tokenizer": self.tokenizer.digest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint of another text or tokenizer, whose embeddings would belong to other tokens."""
        for what, now in self.state_dict().items():
            if state_dict.get(what, now) != now:
                raise StructuredInitError(
                    f"the checkpoint was made with another {what.replace('_', ' ')} than that of '{self.name}' here "
                    f"(SHA-256 {state_dict[what][:12]}… then, {now[:12]}… now): give the same data"
                )

    def _tokens(self, part: str) -> Tokens:
        return encode(self.parts[part], self.tokenizer, self.document_tokens)

    def _masking(self, seed: int, fixed: bool = False) -> Masking | None:
        return Masking(self.tokenizer, self.mask_probability, seed, fixed) if self.objective == "masked" else None

    def _blocks(self, tokens: Tokens, budget: int | None, masking: Masking | None) -> Blocks:
        spans = choose(tokens.bounds, len(tokens) if budget is None else budget, self.split_seed)
        layout = (pack if self.packing else rows)(spans, self.block_size)
        fill = {"pad_token_id": self.pad_token_id, "cross_documents": self.cross_documents}
        return Blocks(tokens, layout, self.block_size, masking=masking, **fill)
