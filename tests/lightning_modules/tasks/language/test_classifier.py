from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningDataModule
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, f1_score
from torch.utils.data import DataLoader

from callbacks import AttentionMapCallback
from lightning_modules import TextClassifier
from lightning_modules.tasks.language.classifier import last_token, mean_token
from structured_init import StructuredInitError

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES = {"num_classes": 3, "vocab_size": 23, "block_size": 12}


def batches(seed=0, sizes=((4, 12), (3, 7), (5, 9))):
    """Texts of different lengths, padded to the longest of each batch; the class is that of their first token."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for size in sizes:
        ids = torch.randint(2, 23, size, generator=generator)
        lengths = torch.randint(2, size[1] + 1, (size[0], 1), generator=generator)
        mask = (torch.arange(size[1]) < lengths).long()
        made.append({"input_ids": ids * mask, "attention_mask": mask, "labels": ids[:, 0] % 3})
    return made


class Texts(LightningDataModule):
    num_classes, vocab_size, block_size = 3, 23, 12

    def train_dataloader(self):
        return DataLoader(batches(), batch_size=None)

    val_dataloader = test_dataloader = train_dataloader


def classifier(network="bert", **arguments):
    torch.manual_seed(0)
    fields = {**SMALL, **({"intermediate_size": 32} if network != "gpt2" else {})}
    return TextClassifier(network, fields, **{**SIZES, **arguments})


def test_accuracy_and_f1_are_those_of_all_texts_whatever_the_batches(trainer):
    model = classifier().eval()
    (logged,) = trainer().test(model, DataLoader(batches(), batch_size=None), verbose=False)
    with torch.no_grad():
        found = torch.cat([model(**model.probe_inputs(batch)).argmax(-1) for batch in batches()])
    labels = torch.cat([batch["labels"] for batch in batches()])
    assert logged["test/accuracy"] == pytest.approx(accuracy_score(labels, found))
    assert logged["test/f1"] == pytest.approx(f1_score(labels, found, average="macro"))


@pytest.mark.parametrize("network", ["bert", "gpt2", "llama"])
def test_a_text_has_the_same_logits_whatever_it_is_padded_to(network):
    model = classifier(network).eval()
    ids = torch.tensor([[3, 4, 5, 6]])
    alone = model(ids, torch.ones_like(ids))
    padded = model(torch.tensor([[3, 4, 5, 6, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]]))
    torch.testing.assert_close(alone, padded)


def test_tokens_are_pooled_under_their_mask():
    hidden = torch.arange(12.0).view(1, 4, 3).repeat(2, 1, 1)
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    assert mean_token(hidden, mask)[:, 0].tolist() == [3, 6]
    assert last_token(hidden, mask)[:, 0].tolist() == [6, 9]


def test_every_parameter_gets_a_gradient():
    model = classifier().train()
    model.training_step(batches()[0], 0).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_attention_is_captured_on_padded_texts_and_none_falls_on_padding(trainer, tmp_path):
    (batch,) = batches(sizes=((6, 12),))
    texts = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    callback = AttentionMapCallback(samples=3, figures=False)
    run = trainer(default_root_dir=tmp_path, callbacks=[callback])
    run.fit(classifier(), DataLoader(texts, batch_size=3), DataLoader(texts, batch_size=3))
    maps = load_file(tmp_path / "attention" / "before.safetensors")
    mask = batch["attention_mask"][callback.records["before"]["indices"]].bool()
    assert len(maps) == 2
    for layer in maps.values():
        assert layer.masked_select(~mask[:, None, None, :]).abs().max() == 0


def test_classes_that_the_network_has_not_are_refused(trainer):
    with pytest.raises(StructuredInitError, match="the data has num_classes 3, the model 2: set num_classes"):
        trainer().fit(classifier(num_classes=2), datamodule=Texts())
