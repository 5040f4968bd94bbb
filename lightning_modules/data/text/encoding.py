"""A corpus as tokens in files that are mapped into memory, written once for each text and tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.text.corpus import Texts
from lightning_modules.data.text.tokenizer import Pieces, Tokenizer, cache_folder
from structured_init.files import replacing

RECORD = np.dtype([("id", "<i4"), ("characters", "<i4"), ("bytes", "<i4")])
ADDED = ("both", "begin", "end", "none")
_CHARACTERS_AT_ONCE = 1 << 20
_FORMAT = 1  # another one where files of an older version would be read wrongly


class Tokens:
    """The tokens of many documents, one after the other, in a file of `RECORD`; opened by each process for itself.

    ``bounds`` (D + 1,) are where each document begins, and the end of the last.
    """

    def __init__(self, file: Path, bounds: NDArray[np.int64]) -> None:
        self.file, self.bounds = file, bounds
        self._records: NDArray[np.void] | None = None

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def records(self) -> NDArray[np.void]:
        """All tokens, (N,) of `RECORD`, read from the disk where they are asked for."""
        if self._records is None:
            empty = np.empty(0, dtype=RECORD)  # a map cannot be
            self._records = np.memmap(self.file, dtype=RECORD, mode="r") if len(self) else empty
        return self._records

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": None}  # a worker process opens the file and copies nothing


def encode(documents: Texts, tokenizer: Tokenizer, added: str) -> Tokens:
    """Return documents as tokens, from the cache where they are in it; refuse a folder that cannot be written to.

    ``added`` says which special tokens each gets: begin, end, both or none, of those that the tokenizer has.
    """
    asked = f"{_FORMAT} {documents.digest} {tokenizer.digest} {_ends(tokenizer, added)}"
    name = hashlib.sha256(asked.encode()).hexdigest()[:32]
    folder = cache_folder()
    file, marker = folder / f"tokens-{name}.bin", folder / f"tokens-{name}.npy"
    if not marker.exists() or not file.exists():
        lengths = [0]
        with replacing(file) as temporary, temporary.open("wb") as out:
            for pieces in encode_each(documents, tokenizer, added):
                records = np.empty(len(pieces.ids), dtype=RECORD)
                records["id"], records["characters"], records["bytes"] = pieces
                lengths.append(len(records))
                out.write(records.tobytes())
        with replacing(marker) as temporary:  # last: where it is, the tokens are whole
            np.save(temporary, np.cumsum(lengths))
    return Tokens(file, np.load(marker))


def encode_each(documents: Iterable[str], tokenizer: Tokenizer, added: str) -> Iterator[Pieces]:
    """Yield every document's tokens, with the special ones that it gets; these stand for no text."""
    begin, end = _ends(tokenizer, added)
    for group in _grouped(documents):
        for ids, *counts in tokenizer.pieces(group):
            none_before, none_after = np.zeros(len(begin), dtype=np.int64), np.zeros(len(end), dtype=np.int64)
            around = (np.concatenate([none_before, count, none_after]) for count in counts)
            yield Pieces(np.concatenate([begin, ids, end]).astype(np.int64), *around)


def _ends(tokenizer: Tokenizer, added: str) -> tuple[list[int], list[int]]:
    """Return the tokens before and after each document; one of them where both are the same, as in GPT-2."""
    begin = [] if tokenizer.begin_token_id is None or added not in ("begin", "both") else [tokenizer.begin_token_id]
    end = [] if tokenizer.end_token_id is None or added not in ("end", "both") else [tokenizer.end_token_id]
    return begin, [] if begin == end else end


def _grouped(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield documents in groups large enough to keep all threads busy and small enough for memory."""
    group: list[str] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document)
        if size >= _CHARACTERS_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
