"""`TextClassificationData`: texts, classes and parts."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lightning_modules.data import TextClassificationData

WORDS = {"bad": ["awful", "dull", "poor"], "good": ["great", "fine", "lovely"], "none": ["table", "chair", "door"]}


def reviews(count: int, seed: int) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    labels = [rng.choice(sorted(WORDS)) for _ in range(count)]
    return [
        f"{i} " + " ".join(rng.choices(WORDS[label], k=rng.randint(1, 12))) for i, label in enumerate(labels)
    ], labels


@pytest.fixture
def write(tmp_path):
    def write(split, texts, labels, **names):
        columns = {names.get("text", "sentence"): texts, names.get("label", "label"): labels}
        pq.write_table(pa.table(columns), tmp_path / f"{split}-00000-of-00001.parquet")
        return tmp_path

    return write


@pytest.fixture
def folder(write):
    """A hundred and twenty texts of three classes named by strings, and thirty to test on."""
    write("validation", *reviews(30, seed=1))
    return write("train", *reviews(120, seed=0))


def data(folder, **arguments) -> TextClassificationData:
    return TextClassificationData(str(folder), **{"tokenizer": "characters", "batch_size": 8, "seed": 0, **arguments})


def test_the_tokenizer_learns_from_all_of_train_but_what_is_validated_on(folder):
    of = data(folder, val_split="validation")
    assert (len(of.val_set), len(of.train_set), len(of.training_texts())) == (30, 120, 120)
    carved = data(folder, val_fraction=0.25)
    assert (len(carved.val_set), len(carved.train_set), len(carved.training_texts())) == (30, 90, 90)


def stored(of, batches) -> list[tuple[str, str]]:
    return [
        (of.tokenizer.decode(row, skip_special_tokens=True), of.class_names[label])
        for batch in batches
        for row, label in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


def test_labels_that_are_strings_are_numbered_by_their_sorted_names(folder):
    of = data(folder)
    of.setup("test")
    assert (of.class_names, of.num_classes, of.test_split) == (["bad", "good", "none"], 3, "validation")
    assert stored(of, of.test_dataloader()) == list(zip(*reviews(30, seed=1), strict=True))


def test_parts_of_train_are_disjoint_and_stratified(folder):
    of = data(folder, val_fraction=0.25)
    train, val = (stored(of, [part.__getitems__(list(range(len(part))))]) for part in (of.train_set, of.val_set))
    assert sorted(train + val) == sorted(zip(*reviews(120, seed=0), strict=True))
    for name in WORDS:
        count = sum(label == name for _, label in train + val)
        assert abs(sum(label == name for _, label in val) - count / 4) <= 1


def test_a_text_stands_between_special_tokens_and_is_cut_and_padded(write):
    of = data(write("train", ["ab", "abcdefgh"], [0, 1]), val_fraction=0, max_length=6, batch_size=2)
    batch = of.train_set.__getitems__([(0, 0), (3, 1)])
    begin, end, pad = of.tokenizer.bos_token_id, of.tokenizer.eos_token_id, of.tokenizer.pad_token_id
    a, b, c, d = of.tokenizer.encode("abcd")
    assert batch["input_ids"].tolist() == [[begin, a, b, end, pad, pad], [begin, a, b, c, d, end]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert batch["labels"].tolist() == [0, 1]
    assert {values.dtype for values in batch.values()} == {torch.int64}
    assert of.block_size == 6
