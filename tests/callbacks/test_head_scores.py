"""What a training says of its previous-token and induction heads: in the statistics, and to its loggers."""

import csv
import json
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from training import quiet_trainer

from callbacks.attention_map import AttentionMapCallback
from callbacks.head_scores import head_scores
from callbacks.samples import ProbeBatch
from lightning_modules import LanguageModel
from structured_init import Induction, initialize

LENGTH, WORDS = 16, 40
LAYERS = ["network.transformer.h.0.attn", "network.transformer.h.1.attn"]
SCORES = ["val/induction_score", "val/previous_token_score"]


def text(index):
    return torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))


def language(cls=LanguageModel):
    """A GPT-2 of two layers, initialized to continue what came before."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 1, "attn_pdrop": 0.1}
    torch.manual_seed(0)
    model = cls("gpt2", sizes, vocab_size=WORDS, block_size=LENGTH)
    initialize(model.network, Induction())
    return model


class Recall(LanguageModel):
    """Marks what it is asked for: the last three tokens."""

    def probe_queries(self, batch):
        return (torch.arange(LENGTH) >= LENGTH - 3).expand(len(batch["input_ids"]), -1)


def fit(folder, module, callback):
    L.seed_everything(0, verbose=False)
    trainer = quiet_trainer(max_epochs=2, logger=CSVLogger(folder), callbacks=[callback])
    texts = DataLoader([{"input_ids": text(index), "labels": text(index)} for index in range(8)], 4)
    trainer.fit(module, texts, texts)
    return Path(trainer.log_dir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    callback = AttentionMapCallback(samples=4, every_n_epochs=1, figures=False)
    module = language()
    return fit(tmp_path_factory.mktemp("scores"), module, callback), callback, module


def test_statistics_have_the_scores_of_every_head_at_every_capture(trained):
    folder, callback, _ = trained
    statistics = json.loads((folder / "attention" / "statistics.json").read_text())
    assert list(statistics) == ["before", "epoch_0001", "epoch_0002", "after"]
    first, second = (statistics["before"][name] for name in LAYERS)
    assert first["previous_token_score"][0] > 0.7  # written by Induction, the other head is the host's
    assert first["previous_token_score"][1] < 0.3
    assert second["induction_score"][1] > 3 * max(second["induction_score"][0], *first["induction_score"])
    maps = load_file(folder / "attention" / "after.safetensors")[LAYERS[0]]
    expected = sum(maps[:, :, t, t - 1].mean(0) for t in range(1, LENGTH)) / (LENGTH - 1)
    assert statistics["after"][LAYERS[0]]["previous_token_score"] == pytest.approx(expected.tolist(), abs=1e-5)
    rows = list(csv.DictReader((folder / "attention" / "statistics.csv").read_text().splitlines()))
    assert len(rows) == 4 * 2 * 2
    assert float(rows[0]["previous_token_score"]) == first["previous_token_score"][0]
    assert float(rows[3]["induction_score"]) == second["induction_score"][1]
    assert callback.records["before"]["statistics"][LAYERS[1]]["induction_score"] == second["induction_score"]


def test_the_induction_score_is_that_of_random_tokens_that_come_twice():
    """Their second half has nothing to look at but what followed in the first: N/2 − 1 tokens before."""
    seen = []

    def capture(tokens):
        seen.append(tokens)
        maps = torch.zeros(len(tokens), 1, LENGTH, LENGTH)
        maps[:, :, torch.arange(1, LENGTH), torch.arange(LENGTH - 1)] = 0.25
        for t in range(LENGTH // 2, LENGTH):
            maps[:, :, t, t - LENGTH // 2 + 1] += 0.5
        return {"a": maps}

    texts = torch.stack([text(index) for index in range(3)])
    probe = ProbeBatch((texts,), {}, "validation", [], [])
    scores = head_scores({"a": torch.eye(LENGTH).expand(2, 1, -1, -1)}, probe, capture, seed=0)
    assert scores == {"a": {"previous_token_score": [0.0], "induction_score": [0.5]}}
    (tokens,) = seen
    assert tokens.shape == (2, LENGTH)  # as many samples as a cap on memory has left
    assert torch.equal(tokens[:, : LENGTH // 2], tokens[:, LENGTH // 2 :])
    assert set(tokens.flatten().tolist()) <= set(texts.flatten().tolist())


def test_loggers_get_the_best_head_once_a_step(trained):
    folder, callback, _ = trained
    logged = [
        row for row in csv.DictReader((folder / "metrics.csv").read_text().splitlines()) if row["val/induction_score"]
    ]
    assert [(row["epoch"], row["step"]) for row in logged] == [("0", "0"), ("0", "1"), ("1", "3")]
    for row, moment in zip(logged, ("before", "epoch_0001", "epoch_0002"), strict=True):
        statistics = callback.records[moment]["statistics"].values()
        for name in SCORES:
            heads = [value for layer in statistics for value in layer[name.removeprefix("val/")]]
            assert float(row[name]) == pytest.approx(max(heads))


def test_a_module_that_marks_its_questions_is_scored_there(tmp_path):
    callback = AttentionMapCallback(samples=4, figures=False)
    folder = fit(tmp_path, language(Recall), callback)
    maps = load_file(folder / "attention" / "before.safetensors")[LAYERS[1]]
    texts = torch.stack([text(index) for index in callback.records["before"]["indices"]])
    attention = []
    for sample, row in enumerate(texts):
        for t in range(LENGTH - 3, LENGTH):
            if places := [s for s in range(1, t) if row[s - 1] == row[t]]:
                attention.append(sum(maps[sample, :, t, s] for s in places))
    assert attention
    expected = torch.stack(attention).mean(0).tolist()
    assert callback.records["before"]["statistics"][LAYERS[1]]["induction_score"] == pytest.approx(expected, abs=1e-5)


def test_packed_documents_become_one_and_the_mask_shows_all_of_it():
    def capture(**given):
        assert set(given) == {"input_ids", "segment_ids"}
        assert given["segment_ids"].tolist() == [[1] * 8]
        return {"a": torch.eye(8).expand(1, 1, -1, -1)}

    named = {"input_ids": torch.arange(8)[None], "segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 0, 0]])}
    probe = ProbeBatch((), named, "validation", [], [])
    scores = head_scores({"a": torch.eye(8).expand(1, 1, -1, -1)}, probe, capture, 0)
    assert scores["a"]["induction_score"] == [0.0]
