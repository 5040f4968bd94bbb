"""`TextClassificationData`: classified texts from the hub or a folder, as training, validation and test batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.seeded import SeededData, check_carved, check_fractions
from lightning_modules.data.source import Source, open_source
from lightning_modules.data.split import stratified_parts
from lightning_modules.data.text.corpus import TEXTS, VALIDATION, Column
from lightning_modules.data.text.documents import Texts
from lightning_modules.data.text.encoding import Tokens, cache_folder, encode
from lightning_modules.data.text.find_tokenizer import find_tokenizer
from lightning_modules.data.text.sentences import Sentences
from lightning_modules.data.text.tokenizer import Tokenizer
from structured_init.errors import StructuredInitError


class TextClassificationData(SeededData):
    """Texts and classes; batches are dicts as `Sentences` describes them.

    The order is a function of (seed, epoch). The validation part is carved out of train; only `test` reads the test
    split. Labels that are strings are numbered in the order of the training split's sorted names.

    Args:
        name: a Parquet file, a folder of them, or a hub name (``stanfordnlp/sst2``). The folder that the environment
            variable STRUCTURED_INIT_DATA names is searched before the hub, by the last part of the name.
        config: the hub's configuration of the dataset.
        text_column: found by its name or type where null.
        label_column: found by its name or type where null.
        train_split: split to train on.
        test_split: split to test on; where null, ``test``, else ``validation`` or ``valid``.
        tokenizer: ``characters``, ``bytes``; ``bpe`` (byte-level) or ``wordpiece`` to train one on the train split
            without its validation part, whatever ``fraction`` is; a ``tokenizer.json`` or the folder of a saved
            tokenizer; or a hub name.
        vocab_size: of a tokenizer that is trained.
        max_length: of a text in tokens; longer ones lose their end.
        pad_to_max_length: whether every batch is so long; otherwise as long as its longest text.
        num_classes: checked against the dataset; saves opening it to know, where that is expensive.
        batch_size: texts per batch and process.
        eval_batch_size: texts per batch for validation and test; ``batch_size`` where null.
        fraction: share of the train split to train on, in (0, 1], stratified; validation texts are not among them.
        val_fraction: share of the train split to validate on, in [0, 1), stratified; 0 for no validation.
        test_fraction: share of the test split, in (0, 1], stratified, the same for every seed.
        seed: of the order; ``None`` takes the seed of ``seed_everything``, or 0.
        split_seed: of the parts, which runs of different seeds share.
        num_workers: processes that load, per loader.

    Raises:
        StructuredInitError: an argument out of its range; when the data is opened: no such dataset, column, split or
            tokenizer, text that is not UTF-8, a label outside the classes, a class with too few texts, a vocabulary
            too small, a batch larger than the training part.
    """

    unit = "texts"

    def __init__(
        self,
        name: str = "stanfordnlp/sst2",
        config: str | None = None,
        text_column: str | None = None,
        label_column: str | None = None,
        train_split: str = "train",
        test_split: str | None = None,
        tokenizer: str = "wordpiece",
        vocab_size: int = 8192,
        max_length: int = 128,
        pad_to_max_length: bool = False,
        num_classes: int | None = None,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        fraction: float = 1.0,
        val_fraction: float = 0.1,
        test_fraction: float = 1.0,
        seed: int | None = None,
        split_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            name, batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed, num_workers=num_workers
        )
        self.config, self.text_column, self.label_column = config, text_column, label_column
        self.train_split, self._test_split = train_split, test_split
        self.tokenizer_name, self._vocab_size = tokenizer, vocab_size
        self.max_length, self.pad_to_max_length = max_length, pad_to_max_length
        self._num_classes = num_classes
        self.fraction, self.val_fraction, self.test_fraction = fraction, val_fraction, test_fraction
        self.split_seed = split_seed
        check_fractions(fraction=fraction, test_fraction=test_fraction)
        check_carved(val_fraction=val_fraction)
        if max_length < 3:
            raise StructuredInitError(f"max_length={max_length} is less than 3: no room between the special tokens")

    # What a model needs to know -------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; trains it where it is to be trained."""
        return find_tokenizer(self.tokenizer_name, self._vocab_size, self._training_text, cache_folder())

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding of the tokens needs."""
        return self.tokenizer.vocab_size

    @property
    def pad_token_id(self) -> int:
        """What batches are filled up with."""
        return self.tokenizer.pad_token_id

    @property
    def block_size(self) -> int:
        """Positions that a model needs."""
        return self.max_length

    @property
    def num_classes(self) -> int:
        """Number of classes; opens the dataset unless it was given."""
        return self._num_classes if self._num_classes is not None else len(self.source.class_names)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        return self.source.class_names

    # The parts ------------------------------------------------------------------------------------------------------

    @cached_property
    def source(self) -> Source:
        """The dataset, nothing of it tokenized."""
        source = open_source(self.name, self.config, self.text_column, self.label_column, TEXTS)
        if self._num_classes is not None and self._num_classes != len(source.class_names):
            raise StructuredInitError(
                f"num_classes={self._num_classes} does not match dataset '{self.name}', "
                f"which has {len(source.class_names)} classes"
            )
        return source

    @cached_property
    def train_set(self) -> Sentences:
        """The training part."""
        return self._sentences(self.train_split, self._parts[1])

    @cached_property
    def val_set(self) -> Sentences | None:
        """The validation part, carved out of the train split; ``None`` where there is none."""
        return self._sentences(self.train_split, self._parts[0]) if self.val_fraction > 0 else None

    @cached_property
    def test_set(self) -> Sentences:
        """The test part."""
        (rows,) = self._stratify(self.test_split, [self.test_fraction], seed=0)
        return self._sentences(self.test_split, rows)

    @property
    def test_split(self) -> str:
        """Name of the split to test on."""
        usual = [name for name in ("test", *VALIDATION) if name in self.source.splits]
        return self._test_split or (usual[0] if usual else "test")

    # Lightning ------------------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Download, train the tokenizer and tokenize on one process before the others look."""
        _ = self.train_set

    def setup(self, stage: str) -> None:
        """Tokenize what the stage needs."""
        self.share_seed()
        if stage == "fit":
            _ = self.train_set
        if stage in ("fit", "validate"):
            _ = self.val_set
        if stage in ("test", "predict"):
            _ = self.test_set

    # Pieces ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> list[NDArray[np.int64]]:
        """Rows of the train split to validate on and to train on."""
        return self._stratify(self.train_split, [self.val_fraction, self.fraction], seed=self.split_seed)

    def _training_text(self) -> Texts:
        """Return the train split without its validation part."""
        keep = np.ones(len(self.source.split(self.train_split)), dtype=bool)
        keep[self._parts[0]] = False
        return Texts([text for text, kept in zip(self._texts(self.train_split), keep, strict=True) if kept])

    def _texts(self, split: str) -> Iterator[str]:
        return iter(Column(self.source.split(split), self.source.input_column, f"'{split}' in '{self.name}'"))

    def _tokens(self, split: str) -> Tokens:
        return encode(Texts(list(self._texts(split))), self.tokenizer, "none", cache_folder())

    def _stratify(self, split: str, fractions: Sequence[float], seed: int) -> list[NDArray[np.int64]]:
        labels = self.source.labels(split)
        return stratified_parts(labels, fractions, seed=seed, class_names=self.source.class_names, what=split)

    def _sentences(self, split: str, rows: NDArray[np.int64]) -> Sentences:
        return Sentences(
            self._tokens(split),
            rows,
            self.source.labels(split)[rows],
            self.tokenizer,
            self.max_length,
            self.pad_to_max_length,
        )
