from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training import quiet_trainer as trainer

from lightning_modules import ImageClassifier
from structured_init import StructuredInitError

SMALL = {"network_args": {"embed_dim": 16, "num_heads": 2, "depth": 1}, "image_size": 8, "in_channels": 1}


def loader(count=40, batch_size=16, classes=10, side=8):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 1, side, side, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    return DataLoader(TensorDataset(images, labels), batch_size)


def classifier(**arguments):
    return ImageClassifier(**{"network": "vit_nano_patch2_8", **SMALL, **arguments})


def test_the_logged_accuracy_and_loss_are_those_of_all_images_whatever_the_batches():
    model = classifier()
    fitted = trainer()
    (logged,) = fitted.validate(model, loader(), verbose=False)
    images, labels = loader().dataset.tensors
    with torch.no_grad():
        logits = model(images)
    assert logged["val/accuracy"] == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    assert logged["val/loss"] == pytest.approx(F.cross_entropy(logits, labels).item())


def test_the_training_loss_is_smoothed_and_the_others_are_not():
    model = classifier(label_smoothing=0.3)
    images, labels = loader().dataset.tensors
    model._trainer = type("Trainer", (), {"current_epoch": 0, "global_rank": 0, "datamodule": None})()
    expected = F.cross_entropy(model(images), labels, label_smoothing=0.3)
    torch.testing.assert_close(model.training_step((images, labels), 0), expected)


@pytest.mark.parametrize(
    ("length", "steps"), [({"max_epochs": 4}, 12), ({"max_epochs": -1, "max_steps": 7}, 7)], ids=["epochs", "steps"]
)
def test_the_learning_rate_warms_up_over_the_epochs_asked_for_and_ends_at_the_minimum(length, steps):
    seen = []

    class Watching(ImageClassifier):
        def on_train_batch_end(self, *args):
            seen.append(self.optimizers().param_groups[0]["lr"])

    model = Watching("vit_nano_patch2_8", **SMALL, warmup_epochs=1, warmup_lr=1e-4, min_lr=1e-6)
    trainer(**length).fit(model, loader(), loader())
    assert len(seen) == steps
    assert max(seen) == pytest.approx(1e-3)
    assert int(np.argmax(seen)) == 2  # three steps an epoch
    assert seen[-1] == pytest.approx(1e-6)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*loader().dataset.tensors, strict=True))


def test_a_warmup_in_epochs_of_unknown_length_is_refused():
    model = classifier(warmup_epochs=1)
    with pytest.raises(
        StructuredInitError, match=r"^warmup_epochs=1 needs the length of an epoch.*limit_train_batches$"
    ):
        trainer(max_epochs=-1, max_steps=7).fit(model, DataLoader(Stream(), 16), loader())


def test_a_run_without_an_end_is_refused():
    with pytest.raises(StructuredInitError, match=r"give trainer\.max_epochs or max_steps"):
        trainer(max_epochs=-1).fit(classifier(), loader(), loader())


def test_mixing_is_the_same_again_and_another_for_another_seed():
    def losses(seed):
        torch.manual_seed(0)
        model = classifier(mixup=1.0, cutmix=1.0, seed=seed)
        fitted = trainer(max_epochs=2)
        fitted.fit(model, loader(), loader())
        return fitted.callback_metrics["train/loss"].item()

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_a_network_given_as_an_object_is_used_and_kept_out_of_the_hyperparameters():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model = ImageClassifier(network, image_size=8, in_channels=1)
    assert model.network is network
    assert "network" not in model.hparams
    assert "optimizer" not in model.hparams
    trainer().fit(model, loader(), loader())


def test_the_hyperparameters_load_without_running_code(tmp_path):
    model = classifier()
    fitted = trainer()
    fitted.fit(model, loader(), loader())
    fitted.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert saved["hyper_parameters"]["network_args"] == {"embed_dim": 16, "num_heads": 2, "depth": 1}
    again = ImageClassifier.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True, label_smoothing=0.2)
    images = loader().dataset.tensors[0]
    model.eval()
    again.eval()
    torch.testing.assert_close(again(images), model(images))
