"""What a token stands for, and that a trained tokenizer is the same everywhere."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_modules.data.text.corpus import Texts
from lightning_modules.data.text.tokenizer import (
    Tokenizer,
    byte_tokenizer,
    character_tokenizer,
    find_tokenizer,
    train_tokenizer,
)
from structured_init.errors import StructuredInitError

TEXTS = ["the cat sat on the mat, the cat sat", "die Katze saß  auf der Matte\n", "猫はマットの上 — naïve café"] * 3
OWN = {"begin": "<s>", "end": "</s>", "pad": "<pad>", "mask": "<mask>"}


@pytest.fixture(scope="module")
def tokenizers():
    made = {
        "characters": character_tokenizer(TEXTS),
        "bytes": byte_tokenizer(),
        "bpe": train_tokenizer("bpe", TEXTS, 300),
        "wordpiece": train_tokenizer("wordpiece", TEXTS, 120),
    }
    return {name: Tokenizer(backend, name, **OWN) for name, backend in made.items()}


@pytest.mark.parametrize(
    ("name", "text", "characters", "counted"),
    [
        # a, then the two bytes of é, then the three of 猫: the first byte of a character counts for all of it
        ("bytes", "aé猫", [1, 1, 0, 1, 0, 0], [1, 2, 0, 3, 0, 0]),
        ("characters", "ca ß猫", [1] * 5, [1, 1, 1, 2, 3]),
    ],
)
def test_bytes_and_characters_by_hand(tokenizers, name, text, characters, counted):
    (pieces,) = tokenizers[name].pieces([text])
    assert pieces.characters.tolist() == characters
    assert pieces.bytes.tolist() == counted


@pytest.mark.parametrize("name", ["characters", "bpe"])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(TEXTS))
@settings(max_examples=60, deadline=None)
def test_tokens_account_for_every_character_and_byte(tokenizers, name, text):
    (pieces,) = tokenizers[name].pieces([text])
    assert len(pieces.ids) == len(pieces.characters) == len(pieces.bytes)
    assert pieces.characters.sum() == len(text)
    assert pieces.bytes.sum() == len(text.encode())


@pytest.mark.parametrize("name", ["characters", "bytes", "bpe"])
def test_text_comes_back(tokenizers, name):
    for text in TEXTS:
        assert tokenizers[name].decode(tokenizers[name].encode(text)) == text
    if name != "characters":  # which has not seen these: what looks like a special token is text
        ids = tokenizers[name].encode("a</s><mask>")
        assert not set(ids) & set(tokenizers[name].special_ids)
        assert tokenizers[name].decode(ids) == "a</s><mask>"


TRAIN = """
from lightning_modules.data.text.corpus import open_corpus
from lightning_modules.data.text.corpus import Documents
from lightning_modules.data.text.tokenizer import character_tokenizer, train_tokenizer
documents = list(Documents(open_corpus("python-docs", None, None).split("train"), "row"))[:30]
print(train_tokenizer("bpe", documents, 600).to_str())
print(train_tokenizer("wordpiece", documents, 600).to_str())
print(character_tokenizer(documents).to_str())
"""


@pytest.mark.slow
def test_trained_tokenizers_are_the_same_in_every_process():
    here = io.StringIO()
    with redirect_stdout(here):
        exec(TRAIN, {})
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # here it is another, drawn
    there = subprocess.run(
        [sys.executable, "-c", TRAIN],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    assert there.stdout == here.getvalue()
    assert len(there.stdout) > 10_000


def test_a_trained_tokenizer_is_kept_and_another_text_or_size_makes_another(tmp_path):
    def ask(texts, size):
        return find_tokenizer("bpe", size, lambda: Texts(texts), tmp_path).digest

    first = ask(TEXTS, 300)
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    assert ask(TEXTS, 300) == first
    assert file.stat().st_mtime_ns == written
    assert len({first, ask(TEXTS, 280), ask(TEXTS[:1] * 5, 280)}) == 3
    assert len(list(tmp_path.iterdir())) == 3


def test_a_tokenizer_from_a_file_and_from_a_saved_folder(tokenizers, tmp_path):
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers["bpe"].backend
    backend.save(str(tmp_path / "tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(
        tmp_path / "saved"
    )
    own = tokenizers["bpe"]
    for name in (tmp_path / "tokenizer.json", tmp_path / "saved"):
        found = find_tokenizer(str(name), 0, lambda: Texts([]), tmp_path)
        assert found.encode("the cat") == own.encode("the cat")
        assert (found.begin_token_id, found.end_token_id) == (own.begin_token_id, own.end_token_id)
        assert found.vocab_size == own.vocab_size


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("bpee", 300, "did you mean 'bpe'?"),
        ("bpe", 260, "vocab_size=260 is too small for tokenizer 'bpe': its single characters and the special tokens"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path, name, size, said):
    with pytest.raises(StructuredInitError) as caught:
        find_tokenizer(name, size, lambda: Texts(TEXTS), tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
