"""`Tokenizer`: one face for every tokenizer, and how much text each of its tokens stands for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tokenizers

PARALLEL = "TOKENIZERS_PARALLELISM"


class Pieces(NamedTuple):
    """A text as tokens, (T,) each.

    Attributes:
        ids: of the tokens.
        characters: of the text that each stands for; their sum is the length of the text.
        bytes: of the text's UTF-8 that each stands for; their sum is its length.
    """

    ids: NDArray[np.int64]
    characters: NDArray[np.int64]
    bytes: NDArray[np.int64]


class Tokenizer:
    """A fast tokenizer with the special tokens that language models need.

    Args:
        backend: of the ``tokenizers`` library.
        name: as the user wrote it.
        begin: string of the token that begins a document; None where there is none, as for the others.
        end: of the one that ends it.
        pad: of the one that fills a batch.
        mask: of the one that hides a token.

    Attributes:
        begin_token_id: None where there is none, as for the next two.
        end_token_id: id of the token that ends a document.
        mask_token_id: id of the token that hides another.
        pad_token_id: the end token's, else 0, where there is none: padding is never predicted and never attended to.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        name: str,
        *,
        begin: str | None = None,
        end: str | None = None,
        pad: str | None = None,
        mask: str | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.name = backend, name
        ids = [backend.token_to_id(token) if token is not None else None for token in (begin, end, mask, pad)]
        self.begin_token_id, self.end_token_id, self.mask_token_id, pad_id = ids
        self.pad_token_id: int = pad_id if pad_id is not None else self.end_token_id or 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=True)

    def token(self, id: int) -> str:
        """Return what a token looks like on an axis: its own text where it is whole, else its name."""
        name = self.backend.id_to_token(int(id))
        text = self.backend.decode([int(id)], skip_special_tokens=False)
        return name if not text or "\N{REPLACEMENT CHARACTER}" in text or int(id) in self.special_ids else text

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: rows that an embedding needs."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids that no text has."""
        return sorted(id for id, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that it is made of."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Return texts as tokens that account for all characters and bytes.

        A character that several tokens share, as bytes of it, counts for the first of them. What a tokenizer leaves
        out, as spaces between words, counts for the token after it, and at the end of the text for the last one.
        """
        with all_threads():
            encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            _account(text, encoding.ids, [end for _, end in encoding.offsets])
            for text, encoding in zip(texts, encodings, strict=True)
        ]


@contextmanager
def all_threads() -> Iterator[None]:
    """Let the library use its threads, and afterwards no more unless the user said so: they do not survive a fork."""
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = before or "true"
    try:
        yield
    finally:
        os.environ[PARALLEL] = before or "false"


def _account(text: str, ids: list[int], ends: list[int]) -> Pieces:
    """Divide a text among tokens, given where each ends in it, in characters."""
    stops = np.maximum.accumulate(np.array([0, *ends], dtype=np.int64))
    if ids:
        stops[-1] = len(text)
    return Pieces(np.array(ids, dtype=np.int64), np.diff(stops), np.diff(_bytes_before(text)[stops]))


def _bytes_before(text: str) -> NDArray[np.int64]:
    """Return the number of UTF-8 bytes before each character and after the last, (len(text) + 1,)."""
    if text.isascii():
        return np.arange(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(widths)])
