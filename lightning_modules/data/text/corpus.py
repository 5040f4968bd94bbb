"""A corpus: its splits as files of rows, what makes a document, and which documents train, validate and test."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.finding import VALIDATION, Kind, find_column, local_places, open_splits, parquet_files
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

Rows = Iterable[str]  # of a column, or lines of a file with their ends; can be iterated again and again


class Texts:
    """Texts, in order, that can be iterated again and again, and a name for all that they say."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all the text, with where each one ends."""
        hashed = hashlib.sha256()
        for text in self:
            content = text.encode()
            hashed.update(len(content).to_bytes(8, "little") + content)
        return hashed.hexdigest()


@dataclass(eq=False, repr=False)
class Documents(Texts):
    """The documents of a split or of a part of one; iterated again and again, read anew each time."""

    files: Sequence[Rows]  # the rows of each file
    rule: str  # ``row`` or ``file``: each is a document; else a regular expression, found in the row where one begins
    keep: NDArray[np.bool_] | None = None  # whether each document belongs to this part, (D,); all do where None
    span: tuple[int, int] | None = None  # first and last character (excluded) of the part, where all is one document

    def __iter__(self) -> Iterator[str]:
        """Yield the documents that are not blank."""
        for i, document in enumerate(split_documents(self.files, self.rule)):
            if self.keep is None or self.keep[i]:
                yield document if self.span is None else document[slice(*self.span)]


def check_rule(rule: str) -> None:
    """Raise an error where a rule is no regular expression."""
    try:
        re.compile(rule)
    except re.error as error:
        raise StructuredInitError(
            f"documents='{rule}' is neither row nor file nor a regular expression: {error}"
        ) from error


def split_documents(files: Iterable[Rows], rule: str) -> Iterator[str]:
    """Yield the documents of some files, in order, without the blank ones."""
    for file in files:
        groups = ([row] for row in file) if rule == "row" else _groups(file, None if rule == "file" else rule)
        for group in groups:
            document = "".join(row if row.endswith(("\n", "\r")) else row + "\n" for row in group[:-1]) + group[-1]
            if document and not document.isspace():
                yield document


def _groups(rows: Iterable[str], rule: str | None) -> Iterator[list[str]]:
    begins = re.compile(rule).search if rule is not None else lambda row: None
    group: list[str] = []
    for row in rows:
        if group and begins(row):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def carve(documents: Documents, fractions: Sequence[float], seed: int, what: str) -> list[Documents]:
    """Return disjoint parts of about the given shares of the characters (an empty one for 0), and one with the rest.

    By document, drawn by the seed; a single document by contiguous spans that end at ends of lines: the rest comes
    first, then the last of the parts, …, the first of them at the end of the text. A part without one is refused.
    """
    lengths = np.array([len(document) for document in documents])
    if len(lengths) == 1:
        return _spans(documents, fractions)
    order = np.random.default_rng(seed).permutation(len(lengths))
    before = np.cumsum(lengths[order]) - lengths[order]  # characters drawn before each
    bounds = np.cumsum([0, *fractions]) * lengths.sum()
    part_of = np.searchsorted(bounds, before, side="right") - 1
    parts = []
    for i, fraction in enumerate([*fractions, 1.0]):
        keep = np.zeros(len(lengths), dtype=bool)
        keep[order[part_of == i]] = fraction > 0
        if fraction > 0 and not keep.any():
            raise StructuredInitError(
                f"'{what}' has {len(lengths)} documents: too few to carve parts of "
                f"{', '.join(f'{each:g}' for each in fractions)} out of them"
            )
        parts.append(Documents(documents.files, documents.rule, keep))
    return parts


def _spans(documents: Documents, fractions: Sequence[float]) -> list[Documents]:
    (text,) = documents
    stop, parts = len(text), []
    for fraction in [*fractions, None]:
        start = 0 if fraction is None else stop - round(fraction * len(text))
        if fraction and (line := text.rfind("\n", 0, start)) > start - 1000:
            start = max(line + 1, 0)
        parts.append(Documents(documents.files, documents.rule, span=(start, stop)))
        stop = start
    return parts


SPLITS = ("train", *VALIDATION, "test")
TEXT_FILES = (".txt", ".text", ".md")
ABOUT = ("readme", "license")  # beside files of splits, these are none
_ROWS_AT_ONCE = 1000


@dataclass
class Corpus:
    """Text before anything is tokenized."""

    name: str  # as the user wrote it
    splits: Mapping[str, Sequence[Rows]]  # for each split, its files, each a sequence of rows or lines
    rule: str  # what makes a document where the user does not say: ``row`` or ``file``

    def split(self, name: str) -> Sequence[Rows]:
        """Return the files of a split, or an error that lists those that there are."""
        if name not in self.splits:
            raise StructuredInitError(f"corpus '{self.name}' has no split '{name}': {nearest(name, self.splits)}")
        return self.splits[name]


class TextFile:
    """The lines of a UTF-8 file, with their ends; an error when it is read and cannot be, or is not UTF-8."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        number = 0
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise StructuredInitError(
                f"'{self.path}' is not UTF-8 text: byte 0x{error.object[error.start]:02x} in line {number}; "
                "convert it, e.g. with iconv -f latin1 -t utf-8"
            ) from error
        except OSError as error:
            raise StructuredInitError(f"cannot read '{self.path}': {error.strerror or error}") from error


class Column:
    """The rows of a column, which has to hold text, in UTF-8 when it is read; missing ones are empty.

    ``where`` names split and dataset in errors.
    """

    def __init__(self, dataset: Dataset, column: str, where: str) -> None:
        self.table = dataset.select_columns([column])
        self.column, self.where = column, where
        feature = dataset.features[column]
        if not is_text(feature):
            kind = getattr(feature, "dtype", type(feature).__name__)
            texts = [name for name, each in dataset.features.items() if is_text(each)]
            raise StructuredInitError(f"column '{column}' of {where} holds {kind}, not text: {nearest('', texts)}")

    def __iter__(self) -> Iterator[str]:
        start = 0
        try:
            for batch in self.table.iter(_ROWS_AT_ONCE):
                yield from (row or "" for row in batch[self.column])
                start += _ROWS_AT_ONCE
        except UnicodeDecodeError as error:
            raise StructuredInitError(
                f"column '{self.column}' of {self.where} is not UTF-8 text: byte 0x{error.object[error.start]:02x} in "
                f"the rows from {start} to {start + _ROWS_AT_ONCE}"
            ) from error


def open_corpus(name: str, config: str | None, text_column: str | None) -> Corpus:
    """Find a corpus by the arguments that :class:`TextData` has of these names; refuse a corrupt one, or no text."""
    for place in [] if name in TEXTS.embedded else local_places(name, config):
        if not parquet_files(place, config) and (files := _text_files(place)):
            return Corpus(name, files, "file")
    splits = open_splits(name, config, TEXTS)
    features = next(iter(splits.values())).features
    column = find_column(name, "text", text_column, TEXTS.columns, features, TEXTS.is_one)
    rows = {key: [Column(split, column, f"'{key}' in '{name}'")] for key, split in splits.items()}
    return Corpus(name, rows, "row")


def _text_files(place: Path) -> dict[str, list[TextFile]]:
    """Return the text files of each split, ``train/a.txt`` or ``train_0.txt``; all are ``train`` where none says so."""
    if place.is_file():
        return {"train": [TextFile(place)]}
    found = sorted(path for path in place.rglob("*") if path.suffix in TEXT_FILES)
    words = {
        path: [path.relative_to(place).parts[0].lower(), *re.split(r"[-_.]", path.stem.lower())]
        for path in found
        if path.stem.lower() not in ABOUT
    }
    splits: dict[str | None, list[TextFile]] = {}
    for path, said in words.items():
        splits.setdefault(next((each for each in said if each in SPLITS), None), []).append(TextFile(path))
    if None in splits and ("train" in splits or len(splits) > 2):  # how_to_test.md alone may be a document
        raise StructuredInitError(
            f"'{splits[None][0].path}' is of no split, but others in '{place}' are: put it into train/, val/ or test/, "
            "or elsewhere"
        )
    return splits if (splits and None not in splits) or not found else {"train": [TextFile(path) for path in found]}


def is_text(feature: Any) -> bool:
    """Whether a column of this type holds text."""
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _python_docs() -> Mapping[str, Dataset]:
    """Return the English topics that Python's own ``help()`` shows; they differ between Python versions."""
    from pydoc_data.topics import topics

    from datasets import Dataset, DatasetDict

    names = sorted(topics)
    return DatasetDict({"train": Dataset.from_dict({"topic": names, "text": [topics[name] for name in names]})})


TEXTS = Kind(
    "text",
    columns=("text", "sentence", "content", "document", "review"),
    is_one=is_text,
    known=(
        "Salesforce/wikitext",
        "karpathy/tiny_shakespeare",
        "stanfordnlp/sst2",
        "CogComp/trec",
        "roneneldan/TinyStories",
        "stanfordnlp/imdb",
    ),
    embedded={"python-docs": _python_docs},
    local="a text or Parquet file, or a folder of them (train-*.parquet, test-*.txt;",
)


class Parts:
    """The parts ``train``, ``val`` and ``test``: splits of the corpus, and carved out of train where it has none.

    The split of a part is found by its name where None; a part that the corpus lacks is a share of train.
    """

    def __init__(
        self, corpus: Corpus, rule: str, splits: Mapping[str, str | None], shares: Mapping[str, float], seed: int
    ) -> None:
        self.corpus, self.rule, self.seed = corpus, rule, seed
        names = {"val": VALIDATION, "test": ("test",)}
        usual = {part: next((name for name in of if name in corpus.splits), None) for part, of in names.items()}
        self.splits = {part: splits[part] or usual.get(part) for part in ("train", "val", "test")}
        self.shares = {part: 0.0 if self.splits[part] else shares[part] for part in ("test", "val")}

    def __contains__(self, part: str) -> bool:
        return self.splits[part] is not None or self.shares[part] > 0

    def __getitem__(self, part: str) -> Documents:
        """Return the documents of a part; refuse one that is not there, or holds no text."""
        if part != "train" and (split := self.splits[part]) is not None:
            return self._whole(split)
        if part != "train" and part not in self:
            what = {"val": "validate", "test": "test"}[part]
            raise StructuredInitError(
                f"corpus '{self.corpus.name}' has no split to {what} on: name one with {part}_split, or carve one out "
                f"of train with {part}_fraction"
            )
        return self._carved[part]

    @cached_property
    def _carved(self) -> dict[str, Documents]:
        whole = self._whole(self.splits["train"] or "train")
        if not any(self.shares.values()):
            return {"train": whole}
        parts = carve(whole, list(self.shares.values()), self.seed, self.corpus.name)
        return dict(zip([*self.shares, "train"], parts, strict=True))

    def _whole(self, split: str) -> Documents:
        documents = Documents(self.corpus.split(split), self.rule)
        if next(iter(documents), None) is None:
            raise StructuredInitError(f"split '{split}' of '{self.corpus.name}' is empty: it holds no text")
        return documents
