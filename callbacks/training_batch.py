"""Real samples for an initialization that asks for them, taken from the training data without touching its order."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from callbacks.lightning_private import training_source
from callbacks.probe_batch import collect, first_loader, inputs_of
from structured_init.errors import StructuredInitError
from structured_init.undisturbed import own_random_state

WHO = "the initializer"


def training_batch(
    trainer: Trainer, pl_module: LightningModule, samples: int, seed: int, *, early: bool = False
) -> Tensor:
    """Return what the module's forward takes of a few training samples: equal on every rank, which all must call.

    The choice is a function of the seed alone. Loaders are not iterated: their dataset is read, without augmentation
    where it can do without (``without_augmentation()``, as that of ``ImageData``), and in random states of its own.

    Args:
        trainer: says where the training data is.
        pl_module: says with ``probe_inputs(batch)`` what its forward takes; the batch's first element where it does
            not say.
        samples: how many at most.
        seed: of the choice, and of the random states inside.
        early: whether this is ``setup``. Loaders given to ``fit`` and a datamodule are ready by then; the module's own
            loader may not be.

    Raises:
        StructuredInitError: on every rank, there is no training data, or no single tensor for ``forward``.
    """
    try:
        inputs, problem = _read(trainer, pl_module, samples, seed, early), None
    except StructuredInitError as error:
        inputs, problem = None, str(error)
    inputs, problem = trainer.strategy.broadcast((inputs, problem))  # datasets may differ between ranks
    if problem is not None:
        raise StructuredInitError(problem)
    return inputs


def _read(trainer: Trainer, pl_module: LightningModule, samples: int, seed: int, early: bool) -> Tensor:
    name = type(pl_module).__name__
    if not is_overridden("forward", pl_module):
        raise StructuredInitError(f"{WHO} needs {name}.forward, through which real samples run: write one")
    with own_random_state(pl_module, seed), torch.no_grad():
        loader = first_loader(_training_data(trainer, early))
        if loader is None:
            raise StructuredInitError(f"{WHO} needs real samples, and there is no training data to take them from")
        batch, _ = collect(loader, samples, seed, WHO, to_train=True)
        inputs = inputs_of(pl_module, trainer.strategy.batch_to_device(batch, dataloader_idx=0))
    if not isinstance(inputs, Tensor):
        raise StructuredInitError(
            f"{WHO} needs one tensor of real samples: {name}.probe_inputs(batch) gives {type(inputs).__name__}"
        )
    weight = next(pl_module.parameters())  # in setup, not yet of the run's precision
    return inputs[:samples].to("cpu", weight.dtype if inputs.is_floating_point() else inputs.dtype)


def _training_data(trainer: Trainer, early: bool) -> Any:
    """Return the training loaders, asking the module or the datamodule for another one where they are not there yet."""
    if trainer.train_dataloader is not None:
        return trainer.train_dataloader
    source = training_source(trainer)
    if source.instance is None or not source.is_defined():
        return None
    try:
        return source.dataloader()
    except StructuredInitError:
        raise
    except Exception as error:
        if not (early and isinstance(source.instance, LightningModule)):
            raise
        raise StructuredInitError(
            f"{WHO} needs training samples in setup, where {type(source.instance).__name__}.train_dataloader() fails "
            f"({error!r}): give loaders or a datamodule to fit, or use when='fit_start'"
        ) from error
