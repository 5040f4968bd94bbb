"""The floors of language experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks import ngrams
from benchmarks.ngrams import floors, pairs


def test_a_token_is_paired_with_the_one_before_it_unless_it_is_not_predicted():
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = {
        "input_ids": ids,
        "labels": torch.tensor([[-100, 6, -100, 8]]),  # 7 begins a document
        "characters": torch.tensor([[0, 1, 0, 3]]),
    }
    before, tokens, characters = pairs([batch, {name: values[0] for name, values in batch.items()}])
    np.testing.assert_array_equal(before, [5, 7, 5, 7])
    np.testing.assert_array_equal(tokens, [6, 8, 6, 8])
    assert characters == 8


def test_counting_predicts_an_alternating_text_from_the_token_before_and_not_from_frequencies(tmp_path):
    (tmp_path / "corpus.txt").write_text("ab" * 2000)
    (tmp_path / "tiny.yaml").write_text(
        "data: {class_path: TextData, init_args: "
        f"{{name: {tmp_path / 'corpus.txt'}, tokenizer: characters, block_size: 16, batch_size: 4}}}}\ntrainer: {{}}\n"
    )
    found = floors(str(tmp_path / "tiny.yaml"))
    assert found["unigram"][0] == pytest.approx(math.log(2), abs=0.1)  # a few special tokens
    assert found["bigram"][0] < 0.1


def test_the_command_prints_a_row_for_each_experiment_and_model(monkeypatch, capsys):
    monkeypatch.setattr(ngrams, "floors", lambda name: {"unigram": (math.log(4), 2.0), "bigram": (math.log(2), 2.0)})
    monkeypatch.setattr("sys.argv", ["ngrams", "first", "second"])
    ngrams.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows[0] == "| first | unigram | 1.386 | 4.00 | 1.000 |"  # two bits a token of two characters
    assert [row.split(" | ")[0] for row in rows] == ["| first", "| first", "| second", "| second"]
