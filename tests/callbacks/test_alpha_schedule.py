from __future__ import annotations

import math

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from training import quiet_trainer

from callbacks import AlphaScheduleCallback
from lightning_modules import ImageClassifier
from structured_init import StructuredInitError
from structured_init.layers import TokenSoftmaxValue

REMIX = {"mode": "remix", "alpha": 0.0}
STEPS, EPOCHS = 4, 3  # per epoch


def module(**network_args):
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "depth": 1, "num_heads": 2}
    return ImageClassifier("vit_nano_patch2_8", {**sizes, **network_args}, image_size=8, in_channels=1)


def loader():
    images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(images, torch.arange(8)), batch_size=2)


class Seen(L.Callback):
    """What α is in every step, and what was logged."""

    def __init__(self):
        self.alphas, self.logged = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        (values,) = (part for part in pl_module.modules() if isinstance(part, TokenSoftmaxValue))
        self.alphas.append(values.alpha.item())

    def on_train_epoch_end(self, trainer, pl_module):
        self.logged.append(trainer.callback_metrics["alpha"].item())


def fit(callback, tmp_path, model=None, epochs=EPOCHS, more=(), ckpt_path=None, **options):
    seen = Seen()
    options = {"default_root_dir": tmp_path, "limit_val_batches": 0, **options}
    trainer = quiet_trainer(max_epochs=epochs, callbacks=[callback, seen, *more], **options)
    trainer.fit(model or module(token_softmax=REMIX), loader(), loader(), ckpt_path=ckpt_path)
    return seen


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"curve": "linear"}, [i / 11 for i in range(12)]),
        ({"curve": "linear", "start": 1.0, "end": 0.45}, [1 - 0.05 * i for i in range(12)]),
        ({"curve": "cosine"}, [(1 - math.cos(math.pi * i / 11)) / 2 for i in range(12)]),
    ],
)
def test_alpha_follows_its_curve_and_is_logged(arguments, expected, tmp_path):
    seen = fit(AlphaScheduleCallback(**arguments), tmp_path)
    assert seen.alphas == pytest.approx(expected, abs=1e-6)
    assert seen.logged == pytest.approx(expected[3::4], abs=1e-6)


class Killed(L.Callback):
    """Saves the first epoch, and ends the run in the middle of the second."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 6:
            raise RuntimeError("killed")


def test_a_resumed_run_goes_on_with_the_same_alpha_and_weights(tmp_path):
    whole_model, resumed_model = (module(token_softmax=REMIX) for _ in range(2))
    whole = fit(AlphaScheduleCallback("cosine"), tmp_path, whole_model)
    path = tmp_path / "last.ckpt"
    with pytest.raises(RuntimeError, match="killed"):
        fit(AlphaScheduleCallback("cosine"), tmp_path, more=[Killed(path)])
    resumed = fit(AlphaScheduleCallback("cosine"), tmp_path, resumed_model, ckpt_path=path)
    assert resumed.alphas == whole.alphas[STEPS:]
    torch.testing.assert_close(resumed_model.state_dict(), whole_model.state_dict(), rtol=0, atol=0)


def test_a_training_without_an_end_needs_one_for_alpha(tmp_path):
    model = module(token_softmax=REMIX)
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters())
    with pytest.raises(StructuredInitError, match=r"give trainer\.max_epochs or max_steps"):
        fit(AlphaScheduleCallback(), tmp_path, model, epochs=-1)


@pytest.mark.parametrize("args", [{}, {"mode": "replace"}, {"mode": "remix", "learnable": True}])
def test_a_model_without_an_alpha_to_set_is_refused(args, tmp_path):
    network_args = {"token_softmax": args} if args else {}
    with pytest.raises(StructuredInitError, match="has no TokenSoftmaxValue whose alpha can be set"):
        fit(AlphaScheduleCallback(), tmp_path, module(**network_args))
