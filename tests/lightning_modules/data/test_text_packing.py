"""Which tokens make which block: each once, and what a document's borders do."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_modules.data.text.blocks import TOKEN, Blocks, cut
from lightning_modules.data.text.corpus import carve_rows

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
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    shares=st.lists(st.floats(0, 0.4), max_size=2),
    data=st.data(),
)
def test_carved_parts_are_disjoint_and_of_about_the_size_that_was_asked(lengths, shares, data):
    order = np.array(data.draw(st.permutations(range(len(lengths)))))
    lengths = np.array(lengths)
    parts = carve_rows(lengths, shares, order)
    assert [len(parts), sorted(np.concatenate(parts).tolist())] == [len(shares) + 1, list(range(len(lengths)))]
    left = lengths.sum()
    for part, share in zip(parts, shares, strict=False):
        wanted = min(share * lengths.sum(), left)
        assert wanted - 1 <= lengths[part].sum() < wanted + lengths.max() + 1
        left -= lengths[part].sum()
