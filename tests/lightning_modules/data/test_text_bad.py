"""One line for each mistake in a corpus or its arguments, with what would be right."""

from __future__ import annotations

import pytest

from lightning_modules.data import TextData
from structured_init.util.errors import StructuredInitError


def first_loader(path, **arguments):
    data = TextData(str(path), **{"tokenizer": "characters", "val_fraction": 0, "test_fraction": 0, **arguments})
    data.setup("fit")
    return data.train_dataloader()


def message(path, **arguments) -> str:
    with pytest.raises(StructuredInitError) as caught:
        first_loader(path, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_corpus_is_told_the_ways_and_the_nearest_name(monkeypatch):
    monkeypatch.delenv("STRUCTURED_INIT_DATA", raising=False)
    said = message("Salesforce/wikitex")
    assert "no dataset 'Salesforce/wikitex'" in said
    assert "python-docs, which needs no download" in said
    assert "did you mean 'Salesforce/wikitext'?" in said


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("\n\n", {"documents": "row"}, "split 'train' of '{folder}' is empty: it holds no text"),
        (
            "a text " * 20,
            {"block_size": 16, "batch_size": 32},
            "batch_size=32 is larger than the training part of '{folder}', which has 9 blocks of block_size=16",
        ),
        (
            "one\ntwo",
            {"documents": "row", "val_fraction": 0.1, "test_fraction": 0.1},
            "2 rows of text are too few to carve a part 'train' out of them",
        ),
        ("a text", {"tokenizer": "bpee"}, "no tokenizer 'bpee'"),
    ],
)
def test_text_or_arguments_that_do_not_suffice(tmp_path, text, arguments, said):
    (tmp_path / "train.txt").write_text(text)
    assert message(tmp_path, **arguments).startswith(said.format(folder=tmp_path))


def test_file_that_is_not_utf8(tmp_path):
    file = tmp_path / "train.txt"
    file.write_bytes("eins\nzwei\ndräi\n".encode("latin1"))
    assert message(file).startswith(f"no dataset '{file}' ('utf-8' codec can't decode byte 0xe4")
