"""What a module is shown with: its data, what gives samples of them, and which layers one pass through it shows."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from callbacks.samples import PROBE, collect, first_loader, inputs_of, training_loaders
from lightning_modules.cli.named_model import NamedModel
from structured_init.hosts import state_space_sites
from structured_init.hosts.attention import sought_attention_sites
from structured_init.hosts.depthwise import is_depthwise
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import within
from structured_init.weights import Weights

SAMPLES = 2
Data = LightningDataModule | LightningModule | None  # a module's own loaders are its data


def subject(model: LightningModule, datamodule: LightningDataModule | None) -> tuple[nn.Module, Data]:
    """Return the module that is looked at, with its layers built, and its data; of a model by name the network."""
    if isinstance(model, NamedModel):
        return model.network, None
    if next(model.parameters(), None) is None:  # its layers are built late
        model.configure_model()
    if datamodule is None and is_overridden("train_dataloader", model):
        return model, model
    return model, datamodule


def some_samples(model: nn.Module, data: Data, count: int = SAMPLES, seed: int = 0) -> Any:
    """Return what the module takes of a few training samples: of two, on which attention is found by watching.

    The module says so with ``probe_inputs(batch)``; where it does not, it is the batch's first element. The data are
    set up, and the dataset read, as for a training of that seed; no loader is iterated. Without data it is refused.
    """
    batch, _ = collect(_loaders(model, data, "train"), count, seed, "reading samples", to_train=True)
    return inputs_of(model, batch)


def probe(model: nn.Module, data: Data, without: str, seed: int, count: int | None = None) -> Any:
    """Return what the module takes of the samples that a training captures, or ``None``; say what that costs.

    Without a number they are as many as a batch has.
    """
    if data is None:
        return None
    try:
        loaders = _loaders(model, data, "val" if is_overridden("val_dataloader", data) else "train")
        count = count or getattr(loaders, "batch_size", None) or SAMPLES
        batch, _ = collect(loaders, count, seed, PROBE)
        return inputs_of(model, batch)
    except StructuredInitError as error:
        print(f"{without}: {error}")
        return None


def _loaders(model: nn.Module, data: Data, part: str) -> Any:
    if data is None:
        raise StructuredInitError("samples are needed, and there is no datamodule to take them from")
    data.prepare_data()
    data.setup("fit")
    return first_loader(data.val_dataloader()) if part == "val" else training_loaders(model, data.train_dataloader())


def layers_of(model: nn.Module, data: Data) -> set[str]:
    """Return the kinds of layers that one pass through a model shows, and whether it takes words or images.

    Samples are read only where attention is of no known class. A convolution of patches is none, nor is the short one
    of a state space.
    """
    mixers = state_space_sites(model)
    kinds = {"state-space layer"} if mixers else set()
    batch = None if data is None else partial(some_samples, model, data)
    if sought_attention_sites(Weights(model, batch=batch), None):
        kinds.add("attention")
    for name, module in model.named_modules():
        if any(within(name, mixer.name) for mixer in mixers):
            continue
        if isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.kernel_size > module.stride:
            kinds.add("depthwise convolution" if is_depthwise(module) else "convolution whose windows overlap")
        if isinstance(module, nn.Conv2d):
            kinds.add("images")
        if isinstance(module, nn.Embedding):
            kinds.add("words")
    return kinds - {"words"} if "images" in kinds else kinds
