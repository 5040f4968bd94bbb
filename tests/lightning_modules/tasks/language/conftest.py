from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from training import quiet_trainer

from lightning_modules import LanguageModel

VOCAB, BLOCK = 23, 12
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
WITHOUT_DROPOUT = {"intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FURTHER = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"num_key_value_heads": 2, "intermediate_size": 32},
    "bert": WITHOUT_DROPOUT,
    "roberta": {**WITHOUT_DROPOUT, "pad_token_id": 1},
}
OBJECTIVES = {"gpt2": "causal", "llama": "causal", "bert": "masked", "roberta": "masked"}


@pytest.fixture
def language_model():
    """A factory of small models by their type, always with the same weights for the same arguments."""

    def build(network="gpt2", *, cls=LanguageModel, seed=0, network_args=None, **arguments):
        torch.manual_seed(seed)
        fields = {**SMALL, **FURTHER.get(network, {}), **(network_args or {})}
        sizes = {"vocab_size": VOCAB, "block_size": BLOCK, "objective": OBJECTIVES.get(network, "causal")}
        return cls(network, fields, **{**sizes, **arguments})

    return build


@pytest.fixture
def tokens():
    """A factory of a batch of token numbers and labels, some of which are not predicted."""

    def draw(batch=3, length=BLOCK, seed=0, ignored=0.3):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, VOCAB, (batch, length), generator=generator)
        hidden = torch.rand(batch, length, generator=generator) < ignored
        return {"input_ids": ids, "labels": ids.masked_fill(hidden, -100)}

    return draw


def rows(batch):
    """The rows of a batch, each with its names."""
    return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]


class Letters:
    """A tokenizer of lower-case letters."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") + token) for token in ids)


class Text(LightningDataModule):
    """Training and validation blocks in a fixed order."""

    vocab_size, block_size, objective, tokenizer = VOCAB, BLOCK, "causal", Letters()

    def __init__(self, batch, batch_size=2, validation=None):
        super().__init__()
        self.batch, self.batch_size = batch, batch_size
        self.validation = validation if validation is not None else batch

    def train_dataloader(self):
        return DataLoader(rows(self.batch), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(rows(self.validation), self.batch_size)

    def test_dataloader(self):
        return DataLoader(rows(self.validation), self.batch_size)


@pytest.fixture
def text(tokens):
    """A factory of data of nine blocks."""

    def build(batch=None, **arguments):
        return Text(tokens(9) if batch is None else batch, **arguments)

    return build


@pytest.fixture
def trainer():
    """A factory of quiet trainers."""
    return quiet_trainer
