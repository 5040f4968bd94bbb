"""A corpus: its splits as rows of text, and which rows train, validate and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.finding import Kind, find_column, local_places, open_splits, parquet_files
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset


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


def open_corpus(name: str, config: str | None, text_column: str | None) -> tuple[Mapping[str, Dataset], bool]:
    """Return the splits of a corpus, each with the column ``text`` alone, and whether their rows are lines of files."""
    lines = None if name in TEXTS.embedded else _open_text_files(name, config)
    splits = open_splits(name, config, TEXTS) if lines is None else lines
    features = next(iter(splits.values())).features
    column = find_column(name, "text", text_column, TEXTS.columns, features, is_text)
    if not is_text(features[column]):
        texts = [each for each, feature in features.items() if is_text(feature)]
        raise StructuredInitError(f"column '{column}' of '{name}' holds no text: {nearest('', texts)}")
    renamed = {}
    for split, dataset in splits.items():
        dataset = dataset.select_columns([column])
        renamed[split] = dataset if column == "text" else dataset.rename_column(column, "text")
    return renamed, lines is not None


def rows_with_text(rows: dict[str, list[str | None]]) -> list[bool]:
    """Return which rows hold more than spaces."""
    return [bool(row and not row.isspace()) for row in rows["text"]]


def as_lines(rows: dict[str, list[str | None]]) -> dict[str, list[str]]:
    """Return rows as lines that end, in pieces of 1,000 characters where they are longer: a text may have one line."""
    pieces = []
    for row in rows["text"]:
        line = row or ""
        line = line if line.endswith("\n") else line + "\n"
        pieces.extend(line[start : start + 1000] for start in range(0, len(line), 1000))
    return {"text": pieces}


def _open_text_files(name: str, config: str | None) -> Mapping[str, Dataset] | None:
    """Return the lines of text files, with their ends, by the split that ``datasets`` reads off their names."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    for place in local_places(name, config):
        if parquet_files(place, config) or not (place.is_file() or any(place.rglob("*.txt"))):
            continue
        where = {"data_files": str(place)} if place.is_file() else {"data_dir": str(place)}
        try:
            return load_dataset("text", keep_linebreaks=True, **where)
        except DatasetsError as error:
            raise StructuredInitError(f"'{place}' is not UTF-8 text: {error.__cause__ or error}") from error
    return None


def carve_documents(lengths: NDArray[np.int64], shares: Sequence[float], seed: int) -> list[NDArray[np.int64]]:
    """Return the documents of parts with about the given shares of the characters, and those of the rest, in order.

    Documents, of ``lengths`` (D,), are drawn by the seed; a share of 0 gives an empty part.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    drawn_before = np.cumsum(lengths[order]) - lengths[order]
    bounds = np.cumsum([0, *shares]) * lengths.sum()
    part = np.searchsorted(bounds, drawn_before, side="right") - 1
    return [np.sort(order[part == i]) for i in range(len(shares) + 1)]


def carve_lines(lengths: NDArray[np.int64], shares: Sequence[float]) -> list[NDArray[np.int64]]:
    """Return the lines of contiguous parts, the first one at the end of the text, and those of the rest before them."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    stop = len(lengths)
    parts = []
    for share in shares:
        first_character = max(0, bounds[stop] - round(share * int(bounds[-1])))
        start = int(np.searchsorted(bounds, first_character, side="right")) - 1  # the line that holds it
        parts.append(np.arange(start, stop))
        stop = start
    return [*parts, np.arange(stop)]
