"""One line for each mistake in a corpus or its arguments, with what would be right."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_modules.data import TextData
from structured_init.errors import StructuredInitError


def message(action) -> str:
    with pytest.raises(StructuredInitError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fit(path, **arguments):
    data = TextData(str(path), **{"tokenizer": "bytes", "val_fraction": 0, "test_fraction": 0, **arguments})
    data.setup("fit")
    return data.train_dataloader()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"block_size": 1}, "TextData: block_size must be at least 2, got 1"),
        ({"objective": "mask"}, "unknown objective 'mask': did you mean 'masked'?"),
        ({"document_tokens": "ends"}, "unknown document_tokens 'ends': did you mean 'end'?"),
        ({"documents": "(["}, "documents='([' is neither row nor file nor a regular expression"),
        ({"fraction": 0.0}, "fraction=0.0 is not in (0, 1]"),
        ({"max_tokens": 1}, "TextData: max_tokens must be at least 2 or null, got 1"),
        ({"val_fraction": 1.0}, "val_fraction=1.0 is not in [0, 1); 0 means no validation"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "val_fraction and test_fraction leave nothing to train on"),
        ({"batch_size": 0}, "TextData: batch_size must be at least 1, got 0"),
        ({"vocab_size": -1}, "TextData: vocab_size must be at least 1, got -1"),
        ({"block_size": 8.0}, "TextData: block_size must be a whole number, got 8.0"),
        ({"mask_probability": 1.5}, "mask_probability=1.5 is not in (0, 1]"),
    ],
)
def test_argument_out_of_its_range(as_installed, arguments, said):
    assert said in message(lambda: TextData(**arguments))


@pytest.mark.parametrize(
    "part",
    [
        "no dataset 'wikitext3'",
        "a text or Parquet file, or a folder of them (train-*.parquet, test-*.txt;",
        "STRUCTURED_INIT_DATA",
        "'python-docs', which needs no download",
        "did you mean 'Salesforce/wikitext'?",
    ],
)
def test_unknown_corpus_is_told_the_ways_and_the_nearest_name(part, monkeypatch):
    monkeypatch.delenv("STRUCTURED_INIT_DATA", raising=False)
    name = "Salesforce/wikitex" if part.startswith("did") else "wikitext3"
    assert part in message(lambda: fit(name))


def test_a_name_that_is_right_and_not_at_hand_gets_no_hint(monkeypatch):
    monkeypatch.delenv("STRUCTURED_INIT_DATA", raising=False)
    said = message(lambda: fit("Salesforce/wikitext", config="wikitext-2-v1"))
    assert said.startswith("no dataset 'Salesforce/wikitext' with config 'wikitext-2-v1' (")
    assert said.endswith("or 'python-docs', which needs no download")


def test_a_wrong_name_does_not_find_the_text_of_its_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTURED_INIT_DATA", str(tmp_path))
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "train.txt").write_text("a text " * 200)
    fit("Salesforce/wikitext", config="wikitext-2-v1", block_size=16)
    for name in ("Salesforce/wikitxt", "corpus/train.txt"):
        assert f"no dataset '{name}'" in message(lambda name=name: fit(name, config="wikitext-2-v1", block_size=16))


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("", {}, "split 'train' of '{folder}' is empty: it holds no text"),
        ("\n  \n", {}, "split 'train' of '{folder}' is empty: it holds no text"),
        ("a text", {"val_split": "vald"}, "corpus '{folder}' has no split 'vald': choose from train"),
        (
            "a text " * 20,
            {"block_size": 16, "batch_size": 32},
            "batch_size=32 is larger than the training part of '{folder}', which has 9 blocks of block_size=16",
        ),
        ("a text " * 20, {"tokenizer": "bpe", "vocab_size": 100}, "vocab_size=100 is too small for tokenizer 'bpe'"),
        (
            "one\ntwo",
            {"documents": "row", "val_fraction": 0.1, "test_fraction": 0.1},
            "'{folder}' has 2 documents: too few to carve parts of 0.1, 0.1 out of them",
        ),
    ],
)
def test_text_that_does_not_suffice(tmp_path, text, arguments, said):
    (tmp_path / "train.txt").write_text(text)
    assert message(lambda: fit(tmp_path, **arguments)).startswith(said.format(folder=tmp_path))


@pytest.mark.parametrize("files", ["train.txt a.txt", "en_train.txt en_test.txt a.txt", "val.txt test.txt a.txt"])
def test_a_file_of_no_split_beside_those_of_splits_is_named(tmp_path, files):
    for name in files.split():
        (tmp_path / name).write_text("a text")
    said = f"'{tmp_path}/a.txt' is of no split, but others in '{tmp_path}' are: put it into train/, val/ or test/, "
    assert message(lambda: fit(tmp_path)) == said + "or elsewhere"


def test_file_that_is_not_utf8(tmp_path):
    file = tmp_path / "train.txt"
    file.write_bytes("eins\nzwei\ndräi\n".encode("latin1"))
    said = message(lambda: fit(file))
    assert said.startswith(f"'{file}' is not UTF-8 text: byte 0xe4 in line 3; convert it")


def test_column_that_is_not_utf8(tmp_path):
    offsets, characters = pa.py_buffer(b"\0\0\0\0\3\0\0\0\6\0\0\0"), pa.py_buffer(b"oneb\xe4d")
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, characters])
    pq.write_table(pa.table({"text": column}), tmp_path / "train.parquet")
    said = message(lambda: fit(tmp_path))
    assert said.startswith(f"column 'text' of 'train' in '{tmp_path}' is not UTF-8 text: byte 0xe4 in the rows from 0")


@pytest.mark.parametrize(
    ("columns", "arguments", "said"),
    [
        ("number title", {"text_column": "titel"}, "dataset '{}' has no column 'titel': did you mean 'title'?"),
        (
            "number title",
            {"text_column": "number"},
            "column 'number' of 'train' in '{}' holds int64, not text: choose from title",
        ),
        (
            "number",
            {},
            "dataset '{}' has no column that looks like the text: name it with text_column, choose from number",
        ),
    ],
)
def test_columns_without_the_text(tmp_path, columns, arguments, said):
    known = {"number": [1, 2], "title": ["a", "b"]}
    pq.write_table(pa.table({name: known[name] for name in columns.split()}), tmp_path / "train.parquet")
    assert message(lambda: fit(tmp_path, **arguments)) == said.format(tmp_path)


def test_no_part_to_test_on(tmp_path):
    (tmp_path / "train.txt").write_text("a text")
    data = TextData(str(tmp_path), tokenizer="bytes", val_fraction=0, test_fraction=0)
    assert "has no split to test on: name one with test_split, or carve one out of train with test_fraction" in message(
        lambda: data.setup("test")
    )


def test_tokenizer_without_a_mask(tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("a text")
    said = message(lambda: fit(tmp_path, tokenizer=str(tmp_path / "tokenizer.json"), objective="masked"))
    assert "has no mask token, which objective 'masked' needs" in said
