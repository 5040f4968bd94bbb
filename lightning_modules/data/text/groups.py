"""A stream of text in groups of documents, each packed by itself: what the workers of a streaming loader prepare.

Letters: N tokens, D documents of a group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from lightning_modules.data.randomness import derive_seeds
from lightning_modules.data.text.documents import Documents, Rows, Texts
from lightning_modules.data.text.encoding import as_records, encode_each
from lightning_modules.data.text.tokenizer import PARALLEL, Tokenizer
from structured_init.errors import StructuredInitError


class Group(NamedTuple):
    """Consecutive documents of a stream as tokens.

    Attributes:
        epoch: how often the stream was read to its end before.
        number: of the group in the stream.
        records: of `encoding.RECORD`, (N,).
        bounds: where each document begins, and the end of the last, (D + 1,).
    """

    epoch: int
    number: int
    records: NDArray[np.void]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.records)


class Groups(IterableDataset):
    """The groups of one process, again and again, each time with the files in another order.

    Worker w of W prepares every W-th group: all read the whole stream, since where a group begins depends on all before
    it, and each tokenizes its own. So the order in which a loader gives them out does not depend on W.

    Args:
        files: the rows of each file.
        rule: what makes a document, as for `Documents`.
        tokenizer: for each document.
        added: special tokens of each document, as for `encode`.
        characters: of the documents in a group, at least; a group is shuffled as a whole.
        seed: of the order of the files.
        num_replicas: number of processes.
        rank: of this process.
        start: epoch and number of the first group.
    """

    def __init__(
        self,
        files: Sequence[Rows],
        rule: str,
        tokenizer: Tokenizer,
        added: str,
        *,
        characters: int,
        seed: int,
        num_replicas: int = 1,
        rank: int = 0,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        self.files, self.rule, self.tokenizer, self.added = files, rule, tokenizer, added
        self.characters, self.seed, self.num_replicas, self.rank = characters, seed, num_replicas, rank
        self.start = start

    def __iter__(self) -> Iterator[Group]:
        worker = get_worker_info()
        if worker is not None:
            os.environ[PARALLEL] = "false"  # in this process: threads of the one before did not survive the fork
        workers, mine = (worker.num_workers, worker.id) if worker is not None else (1, 0)
        for i, (epoch, number, texts) in enumerate(self._from_start()):
            if i % workers == mine:
                yield self._tokenized(epoch, number, texts)

    def _from_start(self) -> Iterator[tuple[int, int, list[str]]]:
        epoch, first = self.start
        while True:
            number = -1
            order = np.random.default_rng(int(derive_seeds(self.seed, epoch)[0])).permutation(len(self.files))
            for number, texts in enumerate(self._grouped([self.files[i] for i in order])):
                if number >= first and number % self.num_replicas == self.rank:
                    yield epoch, number, texts
            if number < self.rank:
                raise StructuredInitError(
                    f"the stream gives {number + 1} groups of {self.characters} characters to {self.num_replicas} "
                    "processes: give it a smaller stream_buffer"
                )
            epoch, first = epoch + 1, 0

    def _grouped(self, files: Sequence[Rows]) -> Iterator[list[str]]:
        group: list[str] = []
        size = 0
        for document in Documents(files, self.rule):
            group.append(document)
            size += len(document)
            if size >= self.characters:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _tokenized(self, epoch: int, number: int, texts: list[str]) -> Group:
        records = [as_records(pieces) for pieces in encode_each(texts, self.tokenizer, self.added)]
        bounds = np.cumsum([0, *map(len, records)])
        return Group(epoch, number, np.concatenate(records), bounds)


class Head(Texts):
    """The first documents of a stream, up to a number of characters: what its tokenizer is trained on."""

    def __init__(self, documents: Documents, characters: int) -> None:
        self.documents, self.characters = documents, characters

    def __iter__(self) -> Iterator[str]:
        left = self.characters
        for document in self.documents:
            yield document[:left]
            left -= len(document)
            if left <= 0:
                return
