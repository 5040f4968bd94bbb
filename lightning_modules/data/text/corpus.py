"""A corpus: its splits as rows of text, and which rows train, validate and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.finding import Column, Kind, open_splits
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    from datasets import Dataset


def _python_docs() -> Mapping[str, Dataset]:
    """Return the English topics that Python's own ``help()`` shows; they differ between Python versions."""
    from pydoc_data.topics import topics

    from datasets import Dataset, DatasetDict

    names = sorted(topics)
    return DatasetDict({"train": Dataset.from_dict({"topic": names, "text": [topics[name] for name in names]})})


TEXTS = Kind(
    Column(
        "text",
        ("text", "sentence", "content", "document", "review"),
        lambda feature: getattr(feature, "dtype", None) in ("string", "large_string"),
    ),
    known=(
        "Salesforce/wikitext",
        "karpathy/tiny_shakespeare",
        "stanfordnlp/sst2",
        "CogComp/trec",
        "roneneldan/TinyStories",
        "stanfordnlp/imdb",
    ),
    embedded={"python-docs": _python_docs},
    local="a text or Parquet file, or a folder of them (train-*.parquet, test-*.txt)",
)


LONGEST_LINE = 10_000  # characters


class Corpus(NamedTuple):
    """Text before anything is tokenized."""

    parts: dict[str, Dataset]  # ``train``, ``val`` and ``test``, as far as they are there, with the column ``text``
    one_document: bool  # whether all rows of a part are one document; else each row is


def open_corpus(name: str, config: str | None, text_column: str | None, documents: str | None) -> Corpus:
    """Find a corpus by the arguments that :class:`TextData` has of these names; refuse one without text to train on."""
    splits = open_splits(name, config, TEXTS, plain_text=True)
    column = TEXTS.column.name_in(name, next(iter(splits.values())).features, text_column)
    if "train" not in splits:
        raise StructuredInitError(f"corpus '{name}' has no split 'train': it has {', '.join(splits)}")
    of_lines = splits["train"].info.dataset_name == "text"  # what `datasets` calls text files; others have their names
    one_document = documents == "file" or (documents is None and of_lines)
    parts = {}
    for part, split in {"train": "train", "val": "validation", "test": "test"}.items():
        if split not in splits:
            continue
        rows = splits[split].select_columns([column]).rename_columns({column: "text"})
        rows = rows.map(split_lines, batched=True) if one_document else rows.filter(rows_with_text, batched=True)
        if len(rows) == 0:
            raise StructuredInitError(f"split '{split}' of '{name}' is empty: it holds no text")
        parts[part] = rows
    return Corpus(parts, one_document)


# ``datasets`` keeps what these two and `tokens_of_rows` make, and knows them by name: rename one that makes another.


def rows_with_text(rows: dict[str, list[str | None]]) -> list[bool]:
    """Return which rows hold more than spaces."""
    return [bool(row and not row.isspace()) for row in rows["text"]]


def split_lines(rows: dict[str, list[str | None]]) -> dict[str, list[str]]:
    """Return rows as lines that end, in pieces where they are very long: a text may have one line."""
    pieces: list[str] = []
    for row in rows["text"]:
        line = (row or "").removesuffix("\n") + "\n"
        pieces.extend(line[start : start + LONGEST_LINE] for start in range(0, len(line), LONGEST_LINE))
    return {"text": pieces}


def carve(corpus: Corpus, shares: Mapping[str, float], seed: int) -> Corpus:
    """Take parts that the corpus lacks out of train, by their shares of its characters; refuse an empty one.

    They are documents drawn by the seed, or of a single document the lines from its end backwards.
    """
    lacking = {part: share for part, share in shares.items() if share > 0 and part not in corpus.parts}
    whole = corpus.parts["train"]
    lengths = np.array([len(text) for text in whole["text"]])
    order = np.random.default_rng(seed).permutation(len(lengths))
    if corpus.one_document:
        order = np.arange(len(lengths))[::-1]
    parts = dict(corpus.parts)
    for part, rows in zip([*lacking, "train"], carve_rows(lengths, list(lacking.values()), order), strict=True):
        if len(rows) == 0:
            raise StructuredInitError(f"{len(lengths)} rows of text are too few to carve a part '{part}' out of them")
        parts[part] = whole.select(rows)
    return Corpus(parts, corpus.one_document)


def carve_rows(
    lengths: NDArray[np.int64], shares: Sequence[float], order: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the rows of parts with about the given shares of the characters, and those of the rest, sorted.

    Rows, of ``lengths`` (R,), are taken in that order until a part has its share.
    """
    bounds = np.cumsum([0, *lengths[order]])
    parts = []
    first = 0
    for share in shares:
        enough = bounds[first] + round(share * int(bounds[-1]))
        stop = int(np.searchsorted(bounds[:-1], enough))
        parts.append(np.sort(order[first:stop]))
        first = stop
    return [*parts, np.sort(order[first:])]
