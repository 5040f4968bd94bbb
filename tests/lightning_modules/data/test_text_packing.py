"""Which tokens make which block: each once, none across documents unless asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_modules.data.text.blocks import Blocks, choose, pack, rows
from lightning_modules.data.text.encoding import RECORD, Tokens

LENGTHS = st.lists(st.integers(1, 23), min_size=1, max_size=8)
PAD = 99_999
WHATEVER_IT_TAKES = settings(deadline=None)  # a busy machine is no bug


class InMemory(Tokens):
    """Token i of all is number i, stands for i % 5 characters and 2 (i % 5) bytes."""

    def __init__(self, bounds):
        super().__init__(Path(), bounds)
        self._records = np.empty(len(self), dtype=RECORD)
        self._records["id"] = np.arange(len(self))
        self._records["characters"] = np.arange(len(self)) % 5
        self._records["bytes"] = 2 * (np.arange(len(self)) % 5)


def all_blocks(lengths, size, layout=pack, **arguments):
    tokens = InMemory(np.cumsum([0, *lengths]))
    spans = np.stack([tokens.bounds[:-1], tokens.bounds[1:]], axis=1)
    blocks = Blocks(tokens, layout(spans, size), size, pad_token_id=PAD, **arguments)
    return tokens, blocks.__getitems__(list(range(len(blocks))))


@pytest.mark.parametrize("layout", [pack, rows])
@WHATEVER_IT_TAKES
@given(lengths=LENGTHS, size=st.integers(2, 9))
def test_every_token_is_in_one_place(layout, lengths, size):
    tokens, batch = all_blocks(lengths, size, layout)
    ids = batch["input_ids"].flatten()
    assert sorted(ids[ids != PAD].tolist()) == list(range(len(tokens)))
    assert batch["input_ids"].shape[1] == size
    if layout is pack:
        assert len(batch["input_ids"]) == -(-sum(lengths) // size)  # not a block more than needed


@pytest.mark.parametrize("layout", [pack, rows])
@WHATEVER_IT_TAKES
@given(lengths=LENGTHS, size=st.integers(2, 9))
def test_a_segment_is_a_run_of_one_document(layout, lengths, size):
    _, batch = all_blocks(lengths, size, layout)
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    segments = batch.get("segment_ids", torch.ones_like(batch["input_ids"]))
    assert ((segments == 0) == (batch["input_ids"] == PAD)).all()
    for ids, row, labels in zip(batch["input_ids"], segments, batch["labels"], strict=True):
        numbers = [number for number in row.unique().tolist() if number]
        assert numbers == list(range(1, len(numbers) + 1))
        assert layout is pack or numbers == [1]
        for number in numbers:
            run, predicted = ids[row == number], labels[row == number]
            assert (run.diff() == 1).all()
            assert len(set(document_of[run.numpy()])) == 1
            assert predicted[0] == -100
            assert (predicted[1:] == run[1:]).all()
    assert (batch["labels"][segments == 0] == -100).all()


def test_a_case_by_hand():
    _, batch = all_blocks([3, 4, 1], 5)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, PAD, PAD]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2], [1, 1, 2, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 1, 2, -100, 4], [-100, 6, -100, -100, -100]]
    assert batch["characters"].tolist() == [[0, 1, 2, 0, 4], [0, 1, 0, 0, 0]]


@WHATEVER_IT_TAKES
@given(lengths=LENGTHS, budget=st.integers(1, 120), seed=st.integers(0, 3))
def test_a_budget_is_met_and_nested(lengths, budget, seed):
    bounds = np.cumsum([0, *lengths])

    def chosen(count):
        return {token for start, stop in choose(bounds, count, seed) for token in range(start, stop)}

    assert len(chosen(budget)) == min(budget, sum(lengths))
    assert chosen(budget) <= chosen(budget + 5)
