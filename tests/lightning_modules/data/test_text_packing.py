"""Which tokens make which block: each once, and what a document's borders do."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_modules.data.text.blocks import TOKEN, Blocks, cut
from lightning_modules.data.text.corpus import Corpus, carve
from structured_init.util.errors import StructuredInitError

LENGTHS = st.lists(st.integers(1, 23), min_size=1, max_size=8)
PAD = 99_999
WHATEVER_IT_TAKES = settings(deadline=None)  # a busy machine is no bug


def all_blocks(lengths, size):
    """Token i of all is number i and stands for i % 5 characters."""
    tokens = np.zeros(sum(lengths), TOKEN)
    tokens["id"] = np.arange(len(tokens))
    tokens["characters"] = tokens["id"] % 5
    tokens["document"] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    blocks = Blocks(cut(tokens, size, PAD))
    return blocks.__getitems__(list(range(len(blocks))))


@WHATEVER_IT_TAKES
@given(lengths=LENGTHS, size=st.integers(2, 9))
def test_every_token_is_in_one_place(lengths, size):
    batch = all_blocks(lengths, size)
    ids = batch["input_ids"].flatten()
    assert ids[ids != PAD].tolist() == list(range(sum(lengths)))
    assert batch["input_ids"].shape == (-(-sum(lengths) // size), size)  # not a block more than needed


@WHATEVER_IT_TAKES
@given(lengths=LENGTHS, size=st.integers(2, 9))
def test_a_segment_is_a_run_of_one_document(lengths, size):
    batch = all_blocks(lengths, size)
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    segments = batch.get("segment_ids", torch.ones_like(batch["input_ids"]))
    assert ((segments == 0) == (batch["input_ids"] == PAD)).all()
    for ids, row, labels in zip(batch["input_ids"], segments, batch["labels"], strict=True):
        numbers = [number for number in row.unique().tolist() if number]
        assert numbers == list(range(1, len(numbers) + 1))
        for number in numbers:
            run, predicted = ids[row == number], labels[row == number]
            assert len(set(document_of[run.numpy()])) == 1
            assert predicted[0] == -100
            assert (predicted[1:] == run[1:]).all()
    assert (batch["labels"][segments == 0] == -100).all()


def test_a_case_by_hand():
    batch = all_blocks([3, 4, 1], 5)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, PAD, PAD]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2], [1, 1, 2, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 1, 2, -100, 4], [-100, 6, -100, -100, -100]]
    assert batch["characters"].tolist() == [[0, 1, 2, 0, 4], [0, 1, 0, 0, 0]]


@WHATEVER_IT_TAKES
@given(
    lengths=st.lists(st.integers(1, 40), min_size=20, max_size=30),
    test=st.floats(0.05, 0.3),
    val=st.floats(0.05, 0.3),
    one_document=st.booleans(),
    seed=st.integers(0, 9),
)
def test_carved_parts_are_disjoint_and_of_about_the_size_that_was_asked(lengths, test, val, one_document, seed):
    texts = [chr(ord("A") + i) * length for i, length in enumerate(lengths)]
    corpus = Corpus({"train": Dataset.from_dict({"text": texts})}, one_document)
    try:
        parts = {part: rows["text"][:] for part, rows in carve(corpus, {"test": test, "val": val}, seed).parts.items()}
    except StructuredInitError:
        assert max(lengths) > 0.1 * sum(lengths)  # a few rows hold most of the text
        return
    assert sorted(text for part in parts.values() for text in part) == texts
    for part, share in (("test", test), ("val", val)):
        assert share * sum(lengths) - 1 <= len("".join(parts[part])) < share * sum(lengths) + max(lengths) + 1
    if one_document:
        assert parts["train"] + parts["val"] + parts["test"] == texts
