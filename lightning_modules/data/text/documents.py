"""Documents: which pieces of a corpus belong together, and which of them make a part of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from structured_init.errors import StructuredInitError


class Rows(Protocol):
    """Rows of a column, or lines of a file with their ends; can be iterated again and again."""

    def __iter__(self) -> Iterator[str]: ...


class Texts:
    """Texts that can be iterated again and again, and a name for all that they say.

    Args:
        texts: in order.
    """

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


class Documents(Texts):
    """The documents of a split or of a part of one; iterated again and again, read anew each time.

    Args:
        files: the rows of each file.
        rule: ``row``: each row is a document; ``file``: each file is one; otherwise a regular expression: a new
            document begins at every row in which it is found.
        keep: whether each document belongs to this part, (D,); all do where None.
        span: first and last character (excluded) of the part, where all is one document.

    Raises:
        StructuredInitError: the rule is not a regular expression.
    """

    def __init__(
        self,
        files: Sequence[Rows],
        rule: str,
        keep: NDArray[np.bool_] | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.files, self.rule, self.keep, self.span = files, rule, keep, span
        check_rule(rule)

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
            document = _join(group)
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


def _join(rows: list[str]) -> str:
    """Join rows that a dataset has split at the ends of lines, with or without leaving them there."""
    return "".join(row if row.endswith(("\n", "\r")) else row + "\n" for row in rows[:-1]) + rows[-1]


def carve(documents: Documents, fractions: Sequence[float], seed: int, what: str) -> list[Documents]:
    """Divide documents into disjoint parts of about the given shares of the characters, and one with the rest.

    By document, drawn by the seed; a single document by contiguous spans that end at ends of lines: the rest comes
    first, then the last of the parts, …, the first of them at the end of the text.

    Args:
        documents: all of them.
        fractions: share of the characters for each part; 0 gives an empty one.
        seed: of the draw.
        what: the corpus, for errors.

    Returns:
        A part for each fraction, and the rest.

    Raises:
        StructuredInitError: a part or the rest would have no document.
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
