"""A corpus: its splits as files of rows, from the hub, a local file or folder, or inside the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_modules.data.finding import Kind, local_places, open_splits, open_streams, parquet_files
from lightning_modules.data.source import find_column
from lightning_modules.data.text.documents import Rows
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

VALIDATION = ("validation", "valid", "val", "dev")
SPLITS = ("train", *VALIDATION, "test")
TEXT_FILES = (".txt", ".text", ".md")
_ROWS_AT_ONCE = 1000


@dataclass
class Corpus:
    """Text before anything is tokenized.

    Attributes:
        name: as the user wrote it.
        splits: for each split, its files, each a sequence of rows or lines.
        rule: what makes a document where the user does not say: ``row`` or ``file``.
        streamed: whether it is read from where it lies, each time anew, and may be larger than the disk.
    """

    name: str
    splits: Mapping[str, Sequence[Rows]]
    rule: str
    streamed: bool = False

    def split(self, name: str) -> Sequence[Rows]:
        """Return the files of a split, or an error that lists those that there are."""
        if name not in self.splits:
            raise StructuredInitError(f"corpus '{self.name}' has no split '{name}': {nearest(name, self.splits)}")
        return self.splits[name]


class TextFile:
    """The lines of a UTF-8 file, with their ends.

    Raises:
        StructuredInitError: when it is read: it cannot be, or is not UTF-8.
    """

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
    """The rows of a column of text; missing ones are empty.

    Args:
        dataset: a split, or a stream of one.
        column: its column.
        where: of which split and dataset, for errors.

    Raises:
        StructuredInitError: the column does not hold text; when it is read: a row is not UTF-8.
    """

    def __init__(self, dataset: Dataset | IterableDataset, column: str, where: str) -> None:
        self.table = dataset.select_columns([column])
        self.column, self.where = column, where
        feature = dataset.features[column]
        if not is_text(feature):
            kind = getattr(feature, "dtype", type(feature).__name__)
            raise StructuredInitError(
                f"column '{column}' of {where} holds {kind}, not text: {nearest('', _texts(dataset.features))}"
            )

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


def open_corpus(name: str, config: str | None, text_column: str | None, *, streamed: bool = False) -> Corpus:
    """Find a corpus.

    Args:
        name: ``python-docs``, a text or Parquet file, a folder of them, or a hub name.
        config: the hub's configuration, e.g. ``wikitext-2-v1``.
        text_column: found by its name or type where None.
        streamed: read it from where it lies, each time anew.

    Raises:
        StructuredInitError: no such corpus, a corrupt file, no such column or one that does not hold text.
    """
    for place in [] if name in TEXTS.embedded else local_places(name, config):
        if not parquet_files(place, config) and (files := _text_files(place)):
            return Corpus(name, files, "file", streamed)
    files = open_streams(name, config, TEXTS) if streamed else open_splits(name, config, TEXTS)
    splits = {key: split if isinstance(split, list) else [split] for key, split in files.items()}
    features = next(iter(splits.values()))[0].features
    column = find_column(name, "text", text_column, TEXTS.columns, features, TEXTS.is_one)
    rows = {key: [Column(file, column, f"'{key}' in '{name}'") for file in files] for key, files in splits.items()}
    return Corpus(name, rows, "row", streamed)


def _text_files(place: Path) -> dict[str, list[TextFile]]:
    """Return the text files of each split, ``train.txt`` or ``train-0.txt``; all are ``train`` where none says so."""
    if place.is_file():
        return {"train": [TextFile(place)]}
    found = sorted(path for path in place.rglob("*") if path.suffix in TEXT_FILES) if place.is_dir() else []
    splits: dict[str, list[TextFile]] = {}
    for path in found:
        if (split := path.stem.split("-")[0].split(".")[-1]) in SPLITS:
            splits.setdefault(split, []).append(TextFile(path))
    return splits or ({"train": [TextFile(path) for path in found]} if found else {})


def is_text(feature: Any) -> bool:
    """Whether a column of this type holds text."""
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _texts(features: Mapping[str, Any]) -> list[str]:
    return [name for name, feature in features.items() if is_text(feature)]


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
