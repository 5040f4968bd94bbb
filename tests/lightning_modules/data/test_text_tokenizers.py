"""What a token stands for, and that a trained tokenizer is the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from lightning_modules.data import TextData
from lightning_modules.data.text.blocks import tokens_of_rows

TEXTS = ["the cat sat on the mat, the cat sat", "die Katze saß  auf der Matte", "猫はマットの上 — naïve café"] * 3


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "train.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    without_parts = {"val_fraction": 0, "test_fraction": 0}
    return {
        name: TextData(str(file), tokenizer=name, vocab_size=size, **without_parts).tokenizer
        for name, size in (("characters", 1), ("bpe", 300))
    }


def characters_of(tokenizer, text):
    return tokens_of_rows({"text": [text]}, tokenizer)["characters"][0]


def test_characters_by_hand(tokenizers):
    assert characters_of(tokenizers["characters"], "ca ß猫") == [1] * 5
    # the letter q was in no text: two bytes of é, three of 猫; the first byte of a character counts for all of it
    assert characters_of(tokenizers["bpe"], "qñ犬") == [1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("name", ["characters", "bpe"])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(TEXTS))
@settings(max_examples=60, deadline=None)
def test_tokens_account_for_every_character(tokenizers, name, text):
    assert sum(characters_of(tokenizers[name], text)) == len(text)


@pytest.mark.parametrize("name", ["characters", "bpe"])
def test_text_comes_back(tokenizers, name):
    for text in TEXTS:
        assert tokenizers[name].decode(tokenizers[name].encode(text)) == text
    ids = tokenizers["bpe"].encode("a</s><mask>")  # what looks like a special token is text
    assert not set(ids) & set(tokenizers["bpe"].all_special_ids)
    assert tokenizers["bpe"].decode(ids) == "a</s><mask>"


TRAIN = """
from lightning_modules.data import TextData
for name in ("bpe", "characters"):
    print(TextData(tokenizer=name, vocab_size=600).tokenizer.backend_tokenizer.to_str())
"""


@pytest.mark.slow
def test_trained_tokenizers_are_the_same_in_every_process(tmp_path):
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "HF_DATASETS_CACHE": str(tmp_path / seed)}
        command = [sys.executable, "-c", TRAIN]
        place = Path(__file__).parents[3]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, check=True, text=True)
        said.append(done.stdout)
    assert said[0] == said[1]
    assert len(said[0]) > 10_000


def test_a_saved_tokenizer(tokenizers, tmp_path):
    tokenizers["bpe"].save_pretrained(tmp_path)
    found = TextData(tokenizer=str(tmp_path)).tokenizer
    assert isinstance(found, PreTrainedTokenizerFast)
    assert found.encode("the cat") == tokenizers["bpe"].encode("the cat")
    assert (found.bos_token, found.mask_token_id, len(found)) == ("<s>", 4, len(tokenizers["bpe"]))


@pytest.mark.parametrize(
    ("special", "ends"),
    [
        ({"bos_token": "<s>", "eos_token": "</s>"}, ([2], [3])),
        ({"cls_token": "<s>", "sep_token": "</s>"}, ([2], [3])),  # BERT's names
        ({"bos_token": "</s>", "eos_token": "</s>"}, ([3], [])),  # GPT-2's one
        ({"eos_token": "</s>"}, ([], [3])),
    ],
)
def test_what_stands_around_a_document(tokenizers, tmp_path, special, ends):
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizers["bpe"].backend_tokenizer, **special)
    saved.save_pretrained(tmp_path)
    assert TextData(tokenizer=str(tmp_path)).ends() == ends
