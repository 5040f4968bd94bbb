"""`TextClassificationData`: texts, classes and parts."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lightning_modules.data import TextClassificationData
from structured_init.errors import StructuredInitError

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
    return TextClassificationData(str(folder), **{"tokenizer": "bytes", "batch_size": 8, "seed": 0, **arguments})


def message(action) -> str:
    with pytest.raises(StructuredInitError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_texts_are_validated_on_a_split_that_is_named_and_trained_on_all_of_train(folder):
    of = data(folder, val_split="validation")
    assert (len(of.val_set), len(of.train_set), len(list(of.training_text()))) == (30, 120, 120)
    assert of.remark.endswith("is tested on, and validated on as well, as you ask: choose nothing on it")
    carved = data(folder, val_fraction=0.25)
    assert (len(carved.val_set), len(carved.train_set), len(list(carved.training_text()))) == (30, 90, 90)


def stored(of, batches) -> list[tuple[str, str]]:
    return [
        (of.tokenizer.decode(row.tolist()), of.class_names[label])
        for batch in batches
        for row, label in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


def test_labels_that_are_strings_are_numbered_by_their_sorted_names(folder):
    of = data(folder)
    of.setup("test")
    assert (of.class_names, of.num_classes, of.test_split) == (["bad", "good", "none"], 3, "validation")
    assert stored(of, of.test_dataloader()) == list(zip(*reviews(30, seed=1), strict=True))


def test_a_label_that_train_lacks_is_named(folder, write):
    write("validation", ["a text", "another"], ["good", "goood"])
    said = message(lambda: data(folder).setup("test"))
    assert said == f"row 1 of 'validation' in '{folder}' has no label among the 3 classes"


def test_parts_of_train_are_disjoint_and_stratified(folder):
    of = data(folder, val_fraction=0.25)
    train, val = (stored(of, [part.__getitems__(list(range(len(part))))]) for part in (of.train_set, of.val_set))
    assert sorted(train + val) == sorted(zip(*reviews(120, seed=0), strict=True))
    for name in WORDS:
        count = sum(label == name for _, label in train + val)
        assert abs(sum(label == name for _, label in val) - count / 4) <= 1


def test_a_fraction_keeps_the_tokenizer_and_the_validation(folder):
    whole, part = (data(folder, tokenizer="wordpiece", vocab_size=120, fraction=share) for share in (1.0, 0.25))
    assert len(part.train_set) == 30
    assert whole.tokenizer.digest == part.tokenizer.digest
    assert stored(whole, whole.val_dataloader()) == stored(part, part.val_dataloader())


def test_a_text_stands_between_special_tokens_and_is_cut_and_padded(write):
    of = data(write("train", ["ab", "abcdefgh"], [0, 1]), val_fraction=0, max_length=6, batch_size=2)
    batch = of.train_set.__getitems__([(0, 0), (3, 1)])
    begin, end, pad = of.tokenizer.begin_token_id, of.tokenizer.end_token_id, of.pad_token_id
    a, b, c, d = of.tokenizer.encode("abcd")
    assert batch["input_ids"].tolist() == [[begin, a, b, end, pad, pad], [begin, a, b, c, d, end]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert batch["labels"].tolist() == [0, 1]
    assert {values.dtype for values in batch.values()} == {torch.int64}
    assert of.block_size == 6


@pytest.mark.parametrize(("fixed", "length"), [(False, 5), (True, 9)])
def test_batches_are_as_long_as_asked(write, fixed, length):
    of = data(write("train", ["ab", "abc"], [0, 1]), val_fraction=0, max_length=9, pad_to_max_length=fixed)
    assert of.train_set.__getitems__([0, 1])["input_ids"].shape == (2, length)


def test_a_text_without_tokens_keeps_one_place_to_look_at(write):
    of = data(write("train", ["", "a"], [0, 1]), val_fraction=0, tokenizer="wordpiece", vocab_size=50)
    of.train_set.begin = of.train_set.end = []
    assert of.train_set.__getitems__([0])["attention_mask"].tolist() == [[1]]


def test_batches_do_not_depend_on_the_number_of_workers(folder):
    def batches(workers):
        loader = data(folder, num_workers=workers).train_dataloader()
        loader.sampler.set_epoch(1)
        return list(loader)

    for one, other in zip(batches(0), batches(2), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_length": 2}, "max_length=2 is less than 3"),
        ({"fraction": 2.0}, "fraction=2.0 is not in (0, 1]"),
        ({"val_fraction": -0.1}, "val_fraction=-0.1 is not in [0, 1); 0 means no validation"),
    ],
)
def test_argument_out_of_its_range(arguments, said):
    assert said in message(lambda: TextClassificationData(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text_column": "sentense"}, "has no column 'sentense': did you mean 'sentence'?"),
        ({"label_column": "lable"}, "has no column 'lable': did you mean 'label'?"),
        ({"num_classes": 2}, "num_classes=2 does not match dataset"),
        ({"test_split": "tst"}, "has no split 'tst': choose from train, validation"),
        ({"batch_size": 500}, "batch_size=500 is larger than the training part of '{}', which has 108 texts per"),
    ],
)
def test_what_the_dataset_lacks_is_said(folder, arguments, said):
    def run():
        of = data(folder, **arguments)
        of.setup("fit")
        of.train_dataloader()
        of.setup("test")

    assert said.format(folder) in message(run)


def test_labels_as_the_text_are_refused(write):
    folder = write("train", [1, 2], ["a", "b"])
    said = message(lambda: data(folder, text_column="sentence", val_fraction=0).setup("fit"))
    assert said.startswith("column 'sentence' of 'train' in")
    assert said.endswith("holds int64, not text: choose from label")
