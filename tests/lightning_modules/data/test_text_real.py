"""A corpus that a configuration names, where it lies on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_modules.cli.configurations import find_config
from lightning_modules.data import TextData


@pytest.mark.slow
def test_tiny_shakespeare():
    file = Path(os.environ.get("STRUCTURED_INIT_DATA", "none"), "tiny_shakespeare", "input.txt")
    if not file.is_file():
        pytest.skip("STRUCTURED_INIT_DATA does not name a folder that holds tiny_shakespeare")
    data = TextData(**find_config("data/tiny_shakespeare").content()["data"]["init_args"], seed=0)
    train, val, test = ("".join(data.corpus.parts[part]["text"]) for part in ("train", "val", "test"))
    assert train + val + test == file.read_text()
    assert len(train + val + test) == 1_115_394
    assert data.vocab_size == 65 + 5  # and the special tokens
    batch = next(iter(data.train_dataloader()))
    assert "segment_ids" not in batch
    assert data.tokenizer.decode(batch["input_ids"][0].tolist()) in train
