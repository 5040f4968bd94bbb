"""A few samples of a run's data, read without touching its loaders or its random states: probes, and real inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.data import DataLoader, IterableDataset

from callbacks.lightning_private import training_source
from structured_init.inputs import as_inputs, find_runnable, has_forward
from structured_init.undisturbed import own_random_state
from structured_init.util.errors import StructuredInitError

PROBE = "the probe"
INITIALIZER = "the initializer"


class ProbeBatch(NamedTuple):
    """Samples on the module's device."""

    inputs: tuple  # positional arguments of the module's forward
    named: dict[str, Any]  # arguments of the module's forward by name
    part: str  # the part of the data, ``"validation"`` or ``"training"``
    indices: list[int]  # which samples of its dataset; empty of several datasets, or where it has no numbers
    # the strings of every sample's tokens without padding, where the module can say; else empty
    tokens: list[list[str]]
    # the tokens (B, N) that are to be continued from what came before, where the module can say
    queries: Tensor | None = None


def probe_batch(trainer: Trainer, pl_module: LightningModule, samples: int, seed: int) -> ProbeBatch:
    """Return the same samples at any time of a run: of validation data, else of training data, else refuse it.

    The choice is made by a generator of its own; the dataset, the collate function and the transfer hooks run in
    random states of their own, so that the run's order, augmentation and dropout stay as they are. Loaders are not
    iterated, only their datasets are read. The module says with ``probe_inputs(batch)`` what its forward takes (where
    it does not, the batch's first element), with ``probe_tokens(batch)`` the strings of every sample's tokens, and with
    ``probe_queries(batch)`` which tokens are to be continued from what came before.
    """
    part, loader = _loader(trainer, pl_module)
    with own_random_state(seed), torch.no_grad():
        batch, indices = collect(loader, samples, seed, PROBE)
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        inputs = inputs_of(pl_module, batch)
        tokens = pl_module.probe_tokens(batch) if hasattr(pl_module, "probe_tokens") else []
        queries = pl_module.probe_queries(batch) if hasattr(pl_module, "probe_queries") else None
    return ProbeBatch(*as_inputs(inputs), part, indices, tokens, queries)


def _loader(trainer: Trainer, pl_module: LightningModule) -> tuple[str, Any]:
    if (loader := first_loader(trainer.val_dataloaders)) is not None:
        return "validation", loader
    if (loader := training_loaders(pl_module, trainer.train_dataloader)) is not None:
        return "training", loader
    raise StructuredInitError(f"{PROBE} found neither validation nor training data to take samples from")


def first_loader(loaders: Any) -> Iterable | None:
    """Return the first of one or several loaders, however they are nested; ``None`` where there is none."""
    return next(iter(tree_leaves(_combined(loaders))), None)


def _combined(loaders: Any) -> Any:
    """Return what Lightning has put into a ``CombinedLoader``, and any other loaders as they are."""
    return getattr(loaders, "iterables", loaders)


def training_loaders(pl_module: LightningModule, loaders: Any) -> Any:
    """Return the loaders whose batch ``probe_inputs`` takes, as `training_step` does; without it, the first of them."""
    if not hasattr(pl_module, "probe_inputs") or first_loader(loaders) is None:
        return first_loader(loaders)
    return _combined(loaders)


def collect(loader: Any, samples: int, seed: int, who: str, *, to_train: bool = False) -> tuple[Any, list[int]]:
    """Return a batch as the loader would collate it, and the samples' numbers; a ``DataLoader`` is not iterated.

    Of several loaders it is their batches in the same structure, without numbers. Where the samples are still
    ``to_train`` on, nothing may be used up of them, and where the dataset can do without augmentation, they come
    without. A loader, or a dataset that is still to be trained on, that can be iterated once only is refused. ``who``
    asks, for errors.
    """
    if isinstance(loader, dict | list | tuple):
        return tree_map(lambda each: collect(each, samples, seed, who, to_train=to_train)[0], loader), []
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
    try:
        items = _items(dataset, indices)
    except TypeError as error:  # samples come by (epoch, index); to ask the sampler may move its generator
        try:
            items = _items(dataset, [(0, index) for index in indices])
        except Exception:
            raise error from None  # so it was a mistake in the dataset
    return loader.collate_fn(items), indices


def _items(dataset: Any, keys: list[Any]) -> list[Any]:
    """Return samples as torch's own fetcher does."""
    many = getattr(dataset, "__getitems__", None)
    return many(keys) if callable(many) else [dataset[key] for key in keys]


def _fresh(iterable: Iterable, who: str) -> Iterator:
    """Return an iterator whose use leaves the iterable as it was."""
    iterator = iter(iterable)
    if iterator is iterable:
        raise StructuredInitError(f"{who} would use up a one-time iterator: give a DataLoader")
    return iterator


def inputs_of(pl_module: LightningModule, batch: Any) -> Any:
    """Return what the module's forward takes of a batch."""
    if hasattr(pl_module, "probe_inputs"):
        return pl_module.probe_inputs(batch)
    return batch[0] if isinstance(batch, tuple | list) else batch


def training_batch(
    trainer: Trainer, pl_module: LightningModule, samples: int, seed: int, *, early: bool = False, alone: bool = False
) -> Any:
    """Return what the module's forward takes of a few training samples: equal on every rank, which all must call.

    That is a tensor, or a tuple or dictionary of several inputs; ``alone`` asks for one tensor.

    The choice is a function of the seed alone. Loaders are not iterated: their dataset is read, without augmentation
    where it can do without (``without_augmentation()``, as that of ``ImageData``), and in random states of its own.
    In ``setup`` (``early``), loaders given to ``fit`` and a datamodule are ready; the module's own loader may not be.
    Where there are no training data, or no single tensor where there must be one, every rank refuses it.
    """
    try:
        inputs, problem = _read(trainer, pl_module, samples, seed, early, alone), None
    except StructuredInitError as error:
        inputs, problem = None, str(error)
    inputs, problem = trainer.strategy.broadcast((inputs, problem))  # datasets may differ between ranks
    if problem is not None:
        raise StructuredInitError(problem)
    return inputs


def _read(trainer: Trainer, pl_module: LightningModule, samples: int, seed: int, early: bool, alone: bool) -> Any:
    name = type(pl_module).__name__
    if not has_forward(find_runnable(pl_module)):
        raise StructuredInitError(f"{INITIALIZER} needs {name}.forward, through which real samples run: write one")
    with own_random_state(seed), torch.no_grad():
        loaders = training_loaders(pl_module, _training_data(trainer, early))
        if loaders is None:
            raise StructuredInitError(
                f"{INITIALIZER} needs real samples, and there is no training data to take them from"
            )
        batch, _ = collect(loaders, samples, seed, INITIALIZER, to_train=True)
        inputs = inputs_of(pl_module, trainer.strategy.batch_to_device(batch, dataloader_idx=0))
    if alone and not isinstance(inputs, Tensor):
        raise StructuredInitError(
            f"{INITIALIZER} needs one tensor of real samples, such as images, and {name} is no network of images:"
            f" {name}.probe_inputs(batch) gives {type(inputs).__name__}"
        )
    weight = next(pl_module.parameters())  # in setup, not yet of the run's precision

    def moved(each: Tensor) -> Tensor:
        return each.to("cpu", weight.dtype if each.is_floating_point() else None)

    if isinstance(inputs, Tensor):
        return moved(inputs[:samples])
    args, named = as_inputs(inputs)  # which of several inputs counts samples is not known
    return tree_map_only(Tensor, moved, named or args)


def _training_data(trainer: Trainer, early: bool) -> Any:
    """Return the training loaders, asking the module or the datamodule for another one where they are not there yet."""
    if trainer.train_dataloader is not None:
        return trainer.train_dataloader
    source = training_source(trainer)
    if source.instance is None or not source.is_defined():
        return None
    try:
        return source.dataloader()
    except Exception as error:
        if isinstance(error, StructuredInitError) or not (early and isinstance(source.instance, LightningModule)):
            raise
        raise StructuredInitError(
            f"{INITIALIZER} needs training samples in setup, where {type(source.instance).__name__}.train_dataloader() "
            f"fails ({error!r}): give loaders or a datamodule to fit, or use when='fit_start'"
        ) from error
