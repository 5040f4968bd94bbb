"""Real samples for an initialization that asks for them, taken from the training data without touching its order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from callbacks.lightning_private import training_source
from callbacks.probe_batch import collect, first_loader, inputs_of
from structured_init.draws import Draws
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


class TrainingBatches:
    """Batches of what the module's forward takes, from the training data; they can be iterated any number of times.

    Each batch is drawn anew from the whole of the data, and is a function of the seed and its number alone: equal on
    every rank that has the same data. Samples are read as by :func:`training_batch`.

    Args:
        trainer: says where the training data is.
        pl_module: says with ``probe_inputs(batch)`` what its forward takes.
        samples: in a batch.
        seed: of the choice, and of the random states inside.
        early: whether this is ``setup``.

    Raises:
        StructuredInitError: on every rank, there is no training data, or none with numbered samples.
    """

    def __init__(
        self, trainer: Trainer, pl_module: LightningModule, samples: int, seed: int, *, early: bool = False
    ) -> None:
        self._trainer, self._module, self._samples, self._draws = trainer, pl_module, samples, Draws(seed)
        try:
            self._loader, problem = self._numbered(early), None
        except StructuredInitError as error:
            problem = str(error)
        on_rank_zero = trainer.strategy.broadcast(problem)
        if problem is not None or on_rank_zero is not None:
            raise StructuredInitError(problem or on_rank_zero)

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count():
            seed = self._draws.generator("training batches", str(number)).initial_seed()
            with own_random_state(self._module, seed), torch.no_grad():
                batch, _ = collect(self._loader, self._samples, seed, WHO, to_train=True)
                inputs = inputs_of(self._module, self._trainer.strategy.batch_to_device(batch, dataloader_idx=0))
            yield inputs

    def _numbered(self, early: bool) -> DataLoader:
        with own_random_state(self._module, 0):
            loader = _first_training_loader(self._trainer, early)
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise StructuredInitError(
                f"{WHO} trains on the task's own inputs, which needs a DataLoader of a dataset with numbered samples"
            )
        return loader


def _first_training_loader(trainer: Trainer, early: bool) -> Any:
    loader = first_loader(_training_data(trainer, early))
    if loader is None:
        raise StructuredInitError(f"{WHO} needs real samples, and there is no training data to take them from")
    return loader


def _read(trainer: Trainer, pl_module: LightningModule, samples: int, seed: int, early: bool) -> Tensor:
    name = type(pl_module).__name__
    if not is_overridden("forward", pl_module):
        raise StructuredInitError(f"{WHO} needs {name}.forward, through which real samples run: write one")
    with own_random_state(pl_module, seed), torch.no_grad():
        loader = _first_training_loader(trainer, early)
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
