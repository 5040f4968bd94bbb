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


def test_tiny_shakespeare(shipped):
    data = shipped("tiny_shakespeare", "tiny_shakespeare")
    (train,), (val,), (test,) = (list(data.parts[part]) for part in ("train", "val", "test"))
    whole = (Path(os.environ["STRUCTURED_INIT_DATA"]) / "tiny_shakespeare" / "input.txt").read_text()
    assert train + val + test == whole
    assert len(whole) == 1_115_394
    assert data.vocab_size == 65 + 5  # and the special tokens
    batch = next(iter(data.train_dataloader()))
    assert "segment_ids" not in batch
    assert data.tokenizer.decode(batch["input_ids"][0].tolist()) in train


@pytest.mark.slow
def test_wikitext_2(shipped):
    data = shipped("wikitext2", "wikitext-2")
    documents = list(data.parts["train"])
    assert len(documents) == 629
    assert sum(len(document.split()) for document in documents) == 2_051_910  # 2,088,628 with the ends of 36,718 lines
    assert documents[0].startswith(" = Valkyria Chronicles III = \n")
    assert data.vocab_size == 2048
    records = data.train_set.tokens.records
    assert records["characters"].sum() == sum(map(len, documents))
    assert records["bytes"].sum() == sum(len(document.encode()) for document in documents)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "counts"), [("sst2", "sst2", (66_002, 1_347, 872)), ("trec", "trec", (4_907, 545, 500))]
)
def test_classified_texts(shipped, name, folder, counts):
    data = shipped(name, folder)
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == counts
    assert data.num_classes == len(data.class_names) == {"sst2": 2, "trec": 6}[name]
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert batch["input_ids"].shape[1] <= data.max_length


def test_the_fine_classes_of_trec(shipped):
    assert shipped("trec", "trec", label_column="fine_label", num_classes=50).source.class_names[0] == "ABBR:abb"
