"""What is logged, against values computed otherwise. Run as a script, this file is one of two processes."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from training import quiet_trainer

from lightning_modules import LanguageModel
from lightning_modules.tasks.language.metrics import token_metrics

SIZES = [(3, 12), (1, 5), (2, 9)]  # ragged: (B, T) of each batch


def ragged(seed=0):
    """Batches of different sizes, in which different shares are predicted, with the text behind each token."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for number, size in enumerate(SIZES):
        ids = torch.randint(0, 23, size, generator=generator)
        hidden = torch.rand(size, generator=generator) < 0.3 * number
        characters = torch.randint(0, 6, size, generator=generator, dtype=torch.int32)
        batches.append({"input_ids": ids, "labels": ids.masked_fill(hidden, -100), "characters": characters})
    return batches


def expected(model, batches):
    """The metrics, token by token."""
    model.eval()
    nats, tokens, characters = 0.0, 0, 0
    for batch in batches:
        with torch.no_grad():
            probabilities = model(batch["input_ids"]).double().softmax(-1)
        for row, labels, text in zip(probabilities, batch["labels"], batch["characters"], strict=True):
            for place in range(1, len(labels)):
                if labels[place] != -100:
                    nats -= math.log(row[place - 1, labels[place]])
                    tokens += 1
                    characters += int(text[place])
    bits = nats / math.log(2)
    values = {"loss": nats / tokens, "perplexity": math.exp(nats / tokens), "bits_per_character": bits / characters}
    return {f"val/{name}": value for name, value in values.items()}


def test_the_logged_metrics_are_those_of_all_tokens_whatever_the_batches(language_model, trainer):
    model = language_model()
    (logged,) = trainer().validate(model, DataLoader(ragged(), batch_size=None), verbose=False)
    assert logged == pytest.approx(expected(model, ragged()), rel=1e-5)


class Fixed(nn.Module):
    """Gives every token of four the same probabilities ½, ¼, ⅛, ⅛, whatever came before."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())

    def forward(self, input_ids):
        return self.logits.expand(*input_ids.shape, 4)


def test_bits_per_character_count_characters_and_not_tokens(trainer):
    # "strength ß": the tokens "str" (0), "ength" (1), " ß" (3), of which the first is only read.
    # −log₂ p = 2 bits for "ength" and 3 for " ß": 5 bits for 7 characters.
    batch = {
        "input_ids": torch.tensor([[0, 1, 3]]),
        "labels": torch.tensor([[0, 1, 3]]),
        "characters": torch.tensor([[3, 5, 2]], dtype=torch.int32),
    }
    model = LanguageModel(Fixed(), vocab_size=4, block_size=3)
    (logged,) = trainer().test(model, DataLoader([batch], batch_size=None), verbose=False)
    assert logged["test/bits_per_character"] == pytest.approx(5 / 7)
    assert logged["test/perplexity"] == pytest.approx(2**2.5)
    assert logged["test/loss"] == pytest.approx(2.5 * math.log(2))


def test_an_epoch_forgets_the_one_before(language_model, trainer):
    seen = []

    class Watching(LanguageModel):
        def on_train_batch_end(self, *args):
            if self.trainer.is_last_batch:
                seen.append(self.train_metrics["loss"].tokens.item())

    model = language_model(cls=Watching)
    loader = DataLoader(ragged(), batch_size=None)
    trainer(max_epochs=2).fit(model, loader, loader)
    assert seen[0] == seen[1] > 0


def test_a_float32_sum_of_many_batches_keeps_five_digits():
    torch.manual_seed(0)
    metrics, values = token_metrics(""), 1e5 + 1e4 * torch.rand(2000)
    for value in values:
        metrics.update(value, torch.tensor(20_000), 0)
    assert metrics.compute()["loss"].item() == pytest.approx(values.double().sum().item() / 4e7, rel=1e-5)


@pytest.mark.distributed
@pytest.mark.slow
def test_two_processes_log_the_perplexity_of_all_tokens(two_processes):
    wanted = expected(small(), ragged(0) + ragged(1))
    for logged in two_processes:
        assert logged == pytest.approx(wanted, rel=1e-5)


def small():
    """The model of both processes."""
    torch.manual_seed(0)
    return LanguageModel("gpt2", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}, vocab_size=23)


def rank(folder):
    """Validate on batches that differ between the ranks in number of tokens."""
    batches = DataLoader(ragged(int(os.environ["LOCAL_RANK"])), batch_size=None)
    place = {"devices": 2, "strategy": DDPStrategy(process_group_backend="gloo"), "use_distributed_sampler": False}
    trainer = quiet_trainer(default_root_dir=folder, **place)
    (logged,) = trainer.validate(small(), batches, verbose=False)
    Path(folder, f"{trainer.global_rank}.json").write_text(json.dumps(logged))


if __name__ == "__main__":
    rank(sys.argv[1])
