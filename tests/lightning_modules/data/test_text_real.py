"""The corpora that the configurations name, where they lie on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_modules.cli.configurations import find_config
from lightning_modules.data import TextClassificationData, TextData

CLASSES = {"TextData": TextData, "TextClassificationData": TextClassificationData}


@pytest.fixture
def shipped():
    """Return the data of a shipped configuration, where its corpus is on the disk."""

    def build(name, folder, **changes):
        shelf = os.environ.get("STRUCTURED_INIT_DATA")
        if not shelf or not (Path(shelf) / folder).is_dir():
            pytest.skip(f"STRUCTURED_INIT_DATA does not name a folder that holds {folder}")
        section = find_config(f"data/{name}").content()["data"]
        return CLASSES[section["class_path"]](**{**section["init_args"], "seed": 0, **changes})

    return build


@pytest.mark.slow
def test_tiny_shakespeare(shipped):
    data = shipped("tiny_shakespeare", "tiny_shakespeare")
    train, val, test = ("".join(data.corpus.parts[part]["text"]) for part in ("train", "val", "test"))
    whole = (Path(os.environ["STRUCTURED_INIT_DATA"]) / "tiny_shakespeare" / "input.txt").read_text()
    assert train + val + test == whole
    assert len(whole) == 1_115_394
    assert data.vocab_size == 65 + 5  # and the special tokens
    batch = next(iter(data.train_dataloader()))
    assert "segment_ids" not in batch
    assert data.tokenizer.decode(batch["input_ids"][0].tolist()) in train
