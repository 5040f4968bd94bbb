"""A few fixed samples, taken from a run's data without touching its loaders or its random states."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset

from structured_init.analysis.undisturbed import own_random_state
from structured_init.errors import StructuredInitError


class ProbeBatch(NamedTuple):
    """Samples on the module's device.

    Attributes:
        inputs: positional arguments of the module's forward.
        named: arguments of the module's forward by name.
        part: the part of the data, ``"validation"`` or ``"training"``.
        indices: which samples of its dataset; empty where the dataset has no numbers.
    """

    inputs: tuple
    named: dict[str, Any]
    part: str
    indices: list[int]


def probe_batch(trainer: Trainer, pl_module: LightningModule, samples: int, seed: int) -> ProbeBatch:
    """Return the same samples at any time of a run: from validation data, or from training data where there is none.

    The choice is made by a generator of its own; the dataset, the collate function and the transfer hooks run in
    random states of their own, so that the run's order, augmentation and dropout stay as they are.

    Args:
        trainer: its loaders are not iterated, only their datasets are read.
        pl_module: says with ``probe_inputs(batch)`` what its forward takes; the batch's first element where it does
            not say.
        samples: how many.
        seed: of the choice, and of the random states inside.

    Raises:
        StructuredInitError: there is no dataset to read from.
    """
    part, loader = _loader(trainer)
    with own_random_state(pl_module, seed), torch.no_grad():
        batch, indices = _collected(loader, samples, seed)
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        inputs = _inputs(pl_module, batch)
    if isinstance(inputs, dict):
        return ProbeBatch((), inputs, part, indices)
    return ProbeBatch(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, part, indices)


def _loader(trainer: Trainer) -> tuple[str, Iterable]:
    for part, loaders in (("validation", trainer.val_dataloaders), ("training", trainer.train_dataloader)):
        while isinstance(loaders, dict | list | tuple):
            loaders = next(iter(loaders.values() if isinstance(loaders, dict) else loaders), None)
        if loaders is not None:
            return part, loaders
    raise StructuredInitError("the attention capture found neither validation nor training data to take samples from")


def _collected(loader: Iterable, samples: int, seed: int) -> tuple[Any, list[int]]:
    """Return a batch as the loader would collate it, and the samples' numbers."""
    if not isinstance(loader, DataLoader):
        iterator = iter(loader)
        if iterator is loader or isinstance(loader, Iterator):
            raise StructuredInitError("the attention capture would use up a one-time iterator: give a DataLoader")
        return next(iterator), []
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        if loader.batch_size is None:
            return next(iter(dataset)), []
        return loader.collate_fn(list(itertools.islice(dataset, samples))), []
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
    indices = sorted(order[:samples].tolist())
    many = getattr(dataset, "__getitems__", None)  # as torch's own fetcher does
    items = many(indices) if callable(many) else [dataset[index] for index in indices]
    collate = loader.collate_fn if loader.batch_sampler is not None else torch.utils.data.default_collate
    return collate(items), indices


def _inputs(pl_module: LightningModule, batch: Any) -> Any:
    if hasattr(pl_module, "probe_inputs"):
        return pl_module.probe_inputs(batch)
    return batch[0] if isinstance(batch, tuple | list) else batch
