"""A few fixed samples, taken from a run's data without touching its loaders or its random states."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from structured_init.errors import StructuredInitError
from structured_init.undisturbed import own_random_state

WHO = "the probe"


class ProbeBatch(NamedTuple):
    """Samples on the module's device.

    Attributes:
        inputs: positional arguments of the module's forward.
        named: arguments of the module's forward by name.
        part: the part of the data, ``"validation"`` or ``"training"``.
        indices: which samples of its dataset; empty where the dataset has no numbers.
        tokens: the strings of every sample's tokens without padding, where the module can say; else empty.
        queries: the tokens (B, N) that are to be continued from what came before, where the module can say.
    """

    inputs: tuple
    named: dict[str, Any]
    part: str
    indices: list[int]
    tokens: list[list[str]]
    queries: Tensor | None = None


def probe_batch(trainer: Trainer, pl_module: LightningModule, samples: int, seed: int) -> ProbeBatch:
    """Return the same samples at any time of a run: from validation data, or from training data where there is none.

    The choice is made by a generator of its own; the dataset, the collate function and the transfer hooks run in
    random states of their own, so that the run's order, augmentation and dropout stay as they are.

    Args:
        trainer: its loaders are not iterated, only their datasets are read.
        pl_module: says with ``probe_inputs(batch)`` what its forward takes; the batch's first element where it does
            not say; with ``probe_tokens(batch)`` the strings of every sample's tokens, where it has them; and with
            ``probe_queries(batch)`` which tokens are to be continued from what came before.
        samples: how many.
        seed: of the choice, and of the random states inside.

    Raises:
        StructuredInitError: there is no dataset to read from.
    """
    part, loader = _loader(trainer)
    with own_random_state(pl_module, seed), torch.no_grad():
        batch, indices = collect(loader, samples, seed, WHO)
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        inputs = inputs_of(pl_module, batch)
        tokens = pl_module.probe_tokens(batch) if hasattr(pl_module, "probe_tokens") else []
        queries = pl_module.probe_queries(batch) if hasattr(pl_module, "probe_queries") else None
    if isinstance(inputs, dict):
        return ProbeBatch((), inputs, part, indices, tokens, queries)
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return ProbeBatch(inputs, {}, part, indices, tokens, queries)


def _loader(trainer: Trainer) -> tuple[str, Iterable]:
    for part, loaders in (("validation", trainer.val_dataloaders), ("training", trainer.train_dataloader)):
        if (loader := first_loader(loaders)) is not None:
            return part, loader
    raise StructuredInitError(f"{WHO} found neither validation nor training data to take samples from")


def first_loader(loaders: Any) -> Iterable | None:
    """Return the first of one or several loaders, however they are nested; ``None`` where there is none."""
    while isinstance(loaders, dict | list | tuple):
        loaders = next(iter(loaders.values() if isinstance(loaders, dict) else loaders), None)
    return loaders


def collect(loader: Iterable, samples: int, seed: int, who: str, *, to_train: bool = False) -> tuple[Any, list[int]]:
    """Return a batch as the loader would collate it, and the samples' numbers.

    Args:
        loader: is not iterated where it is a ``DataLoader``, only its dataset is read.
        samples: how many.
        seed: of the choice.
        who: asks, for errors.
        to_train: the samples are still to be trained on: nothing may be used up of them, and where the dataset can do
            without augmentation, they come without.

    Raises:
        StructuredInitError: the loader, or the dataset that is still to be trained on, can be iterated once only.
    """
    if not isinstance(loader, DataLoader):
        return next(_fresh(loader, who)), []
    dataset = loader.dataset
    if to_train and hasattr(dataset, "without_augmentation"):
        dataset = dataset.without_augmentation()
    if isinstance(dataset, IterableDataset):
        iterator = _fresh(dataset, who) if to_train else iter(dataset)
        if loader.batch_size is None:
            return next(iterator), []
        return loader.collate_fn(list(itertools.islice(iterator, samples))), []
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
    indices = sorted(order[:samples].tolist())
    many = getattr(dataset, "__getitems__", None)  # as torch's own fetcher does
    items = many(indices) if callable(many) else [dataset[index] for index in indices]
    collate = loader.collate_fn if loader.batch_sampler is not None else torch.utils.data.default_collate
    return collate(items), indices


def _fresh(iterable: Iterable, who: str) -> Iterator:
    """Return an iterator whose use leaves the iterable as it was."""
    iterator = iter(iterable)
    if iterator is iterable or isinstance(iterable, Iterator):
        raise StructuredInitError(f"{who} would use up a one-time iterator: give a DataLoader")
    return iterator


def inputs_of(pl_module: LightningModule, batch: Any) -> Any:
    """Return what the module's forward takes of a batch."""
    if hasattr(pl_module, "probe_inputs"):
        return pl_module.probe_inputs(batch)
    return batch[0] if isinstance(batch, tuple | list) else batch
