"""Which documents of a corpus train, validate and test."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from lightning_modules.data.text.corpus import VALIDATION, Corpus
from lightning_modules.data.text.documents import Documents, carve
from structured_init.errors import StructuredInitError

_USUAL = {"val": VALIDATION, "test": ("test",)}


class Parts:
    """The parts ``train``, ``val`` and ``test``: splits of the corpus, and carved out of train where it has none.

    Args:
        corpus: the text.
        rule: what makes a document.
        splits: the split of each part, found by its name where None.
        shares: of train, for a part of that name that the corpus lacks.
        seed: of the draw.
    """

    def __init__(
        self, corpus: Corpus, rule: str, splits: Mapping[str, str | None], shares: Mapping[str, float], seed: int
    ) -> None:
        self.corpus, self.rule, self.seed = corpus, rule, seed
        usual = {part: next((name for name in names if name in corpus.splits), None) for part, names in _USUAL.items()}
        self.splits = {part: splits[part] or usual.get(part) for part in ("train", "val", "test")}
        self.shares = {part: 0.0 if self.splits[part] else shares[part] for part in ("test", "val")}

    def __contains__(self, part: str) -> bool:
        return self.splits[part] is not None or self.shares[part] > 0

    def __getitem__(self, part: str) -> Documents:
        """Return the documents of a part.

        Raises:
            StructuredInitError: there is no such part, or it holds no text.
        """
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
        if self.corpus.streamed:
            raise StructuredInitError(
                f"'{self.corpus.name}' is streamed and lacks a split for "
                f"{' and '.join(part for part, share in self.shares.items() if share)}: nothing can be carved out of a "
                "stream, so name splits with val_split and test_split, or set val_fraction and test_fraction to 0"
            )
        parts = carve(whole, list(self.shares.values()), self.seed, self.corpus.name)
        return dict(zip([*self.shares, "train"], parts, strict=True))

    def _whole(self, split: str) -> Documents:
        documents = Documents(self.corpus.split(split), self.rule)
        if next(iter(documents), None) is None:
            raise StructuredInitError(f"split '{split}' of '{self.corpus.name}' is empty: it holds no text")
        return documents
