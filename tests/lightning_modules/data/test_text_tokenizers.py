"""What a token stands for, and that a trained tokenizer is the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from lightning_modules.data import TextData
from lightning_modules.data.text.blocks import encode, tokens_of_rows

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
    found = tokens_of_rows({"text": [text]}, tokenizer)
    assert found["around"][0] == [1, *[0] * (len(found["id"][0]) - 2), 1]
    begin, *characters, end = found["characters"][0]
    assert begin == end == 0  # they stand for no text
    return characters


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
        assert tokenizers[name].decode(tokenizers[name].encode(text), skip_special_tokens=True) == text
    ids = tokenizers["bpe"].encode("a</s><mask>", add_special_tokens=False)  # what looks like a special token is text
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
    ("template", "rows", "joined"),
    [
        ("<s> $A </s>", [2, 0, 3, 2, 0, 3], [2, 0, 0, 3]),  # BERT's
        ("<s> $A", [2, 0, 2, 0], [2, 0, 0]),  # Llama's
        ("$A </s>", [0, 3, 0, 3], [0, 0, 3]),  # T5's
        ("$A", [0, 0], [0, 0]),  # GPT-2's
    ],
)
def test_a_saved_tokenizer_says_what_stands_around_a_document(tokenizers, template, rows, joined):
    saved = deepcopy(tokenizers["characters"])
    ends = [(token, saved.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    saved.backend_tokenizer.post_processor = TemplateProcessing(template, special_tokens=ends)
    text = Dataset.from_dict({"text": ["c", "a"]})
    for one_document, expected in ((False, rows), (True, joined)):
        tokens = encode(text, saved, one_document)
        assert np.where(tokens["around"], tokens["id"], 0).tolist() == expected
        assert tokens["characters"].sum() == 2
