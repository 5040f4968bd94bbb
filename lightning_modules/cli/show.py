"""``structured-init show`` and ``audit``: apply an initializer and look at the model, without training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from safetensors.torch import save_model
from torch import nn

from callbacks import figures
from callbacks.attention_map import AttentionMapCallback
from lightning_modules.cli.mistakes import refuse_unwritable
from lightning_modules.cli.samples import Data, probe, some_samples, subject
from lightning_modules.tasks.checkpoint import refuse_other_weights
from structured_init import Initializer, initialize
from structured_init.analysis import Audit, WeightProducts, audit, capture_attention, weight_products
from structured_init.analysis.filters import depthwise_filters
from structured_init.analysis.statistics import mean_map
from structured_init.hosts import state_space_sites
from structured_init.hosts.attention import sought_attention_sites
from structured_init.inputs import as_inputs
from structured_init.transfer.teacher import beginnings, opened, tensors_of
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import replacing, write_text
from structured_init.weights import Weights

CORNER = 64  # rows and columns of the products that are drawn; whole ones of a ViT-B take 340 MiB
# What is drawn of which kind of thing seen. Each model's products have their own scale: trained and default ones are a
# hundred times smaller than structured ones.
FIGURES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "weight_products.png": ("products", partial(figures.product_figure, same_scale=False)),
    "attention.png": ("maps", figures.map_figure),
    "covariances.png": ("filters", figures.covariance_figure),
    "filters.png": ("filters", figures.filter_figure),
    "variances.png": ("filters", figures.variance_figure),
    "half_lives.png": ("half_lives", figures.half_life_figure),
}


class Runner(Trainer):
    """Lightning's trainer with two more commands."""

    def show(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        *,
        initializer: Initializer,
        seed: int,
        samples: int = 16,
        plan: bool = False,
        export: str | None = None,
        checkpoint: str | None = None,
        output: str = "show",
    ) -> None:
        """Apply an initializer and draw what it did, without training.

        Args:
            model: the module, as the configuration builds it.
            datamodule: where the probe images come from, else the module's loaders; without both no attention
                is drawn.
            initializer: of the section ``init``.
            seed: of its draws.
            samples: how many training samples an initializer gets that measures on them.
            plan: only print what would be done, and touch nothing.
            export: write the initialized network's weights to this file (``.safetensors``); the module's, where it has
                parameters outside of ``network``.
            checkpoint: a checkpoint of the same network, or exported weights, to draw beside it.
            output: folder for the report and the figures.
        """
        shown, data = subject(model, datamodule)
        batch = _batch(shown, data, initializer, samples, seed)
        if plan:
            print(initialize(shown, initializer, seed=seed, batch=batch, dry_run=True))
            return
        folder = Path(output)
        refuse_unwritable(folder)
        if export:
            refuse_unwritable(Path(export).parent)
            if not export.endswith(".safetensors"):
                raise StructuredInitError(f"--export writes a file NAME.safetensors, which '{export}' is not")
        asked, *_ = [each for each in self.callbacks if isinstance(each, AttentionMapCallback)]
        drawn = {"layers": asked.layers, "max_samples": asked.samples, "seed": asked.seed}
        inputs = probe(shown, data, "no attention is drawn", asked.seed, asked.samples) if asked.enabled else None
        views = {"as built": _view(shown, inputs, drawn)}
        other = None
        if checkpoint:
            other = copy.deepcopy(shown)
            load_weights(other, checkpoint)
        report = initialize(shown, initializer, seed=seed, batch=batch)
        label = " + ".join(type(part).__name__ for part in getattr(initializer, "initializers", [initializer]))
        views[label] = _view(shown, inputs, drawn)
        if other is not None:
            views["checkpoint"] = _view(other, inputs, drawn)
        print(report)
        report.save(folder / "init_report.json")
        written = [folder / "init_report.json", *_draw(views, folder)]
        if export:
            made = {"initializer": report.initializer, "seed": str(report.seed)}
            with replacing(export) as temporary, torch.no_grad():  # the network alone, so that any program can load it
                save_model(_network(shown), str(temporary), metadata=made)
            written.append(Path(export))
        print("\nwritten: " + ", ".join(map(str, written)))

    def audit(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        *,
        initializer: Initializer,
        seed: int,
        samples: int = 16,
        classes: int | None = None,
        checkpoint: str | None = None,
        output: str | None = None,
    ) -> None:
        """Say what initialization a model really has, and what is suspicious about it.

        Args:
            model: the module, as the configuration builds it.
            datamodule: where the batch comes from, else the module's loaders; without both the network is run on what
                its host library names.
            initializer: of the section ``init``, applied first.
            seed: of its draws.
            samples: how many training samples an initializer gets that measures on them.
            classes: number of classes or words, for the first loss, where the model does not say it.
            checkpoint: a checkpoint of the same network, or exported weights, to look at instead.
            output: folder for the table of parameters (CSV), the page (Markdown) and the picture (PNG).
        """
        if output:
            refuse_unwritable(output)
        seen, data = subject(model, datamodule)
        inputs = probe(seen, data, "activations and gradients are left out", seed)
        if checkpoint:
            load_weights(seen, checkpoint)
        else:
            initialize(seen, initializer, seed=seed, batch=_batch(seen, data, initializer, samples, seed))
        # Without data the network is asked itself, whose host library the module around it hides.
        found = audit(_network(seen) if inputs is None else seen, inputs, classes=classes)
        print(found)
        if output:
            print("\nwritten: " + ", ".join(map(str, write_audit(found, Path(output)))))


def write_audit(found: Audit, folder: Path) -> list[Path]:
    """Write the table of parameters, the page and the picture into a folder, which is created; return the files."""
    table, page, picture = files = [folder / f"audit.{ending}" for ending in ("csv", "md", "png")]
    with replacing(table) as temporary:
        found.table().to_csv(temporary, index=False)
    write_text(page, found.markdown())
    figures.save_figure(figures.audit_figure(found), picture)
    return files


def _batch(model: nn.Module, data: Data, initializer: Initializer, samples: int, seed: int) -> Any:
    """Return what an initializer measures on; where it measures nothing, what reads samples if they are asked for."""
    if data is None:
        return None
    if initializer.needs_batch:
        return some_samples(model, data, samples, seed)
    return partial(some_samples, model, data, initializer.samples_to_watch, seed)


def _view(model: nn.Module, inputs: Any, drawn: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what is seen of a model, by kind and layer; no inputs, no attention.

    ``drawn`` are options of ``capture_attention``. Of products of weights it is a corner.
    """
    products = {}
    for site in sought_attention_sites(Weights(model, batch=None if inputs is None else lambda: inputs), None):
        corners = [product[..., :CORNER, :CORNER].clone() for product in weight_products(site)]
        products[site.name] = WeightProducts(*corners)
    maps = {}
    if products and inputs is not None:
        args, named = as_inputs(inputs)
        captured = capture_attention(model, args, **drawn, **named)
        maps = {name: mean_map(seen) for name, seen in captured.items()}
    half_lives = {site.name: site.half_life for site in state_space_sites(model)}
    return {"products": products, "maps": maps, "filters": depthwise_filters(model), "half_lives": half_lives}


def _draw(views: dict[str, dict[str, dict[str, Any]]], folder: Path) -> Iterator[Path]:
    """Draw what there is to draw of each view, and yield the files."""
    for name, (kind, figure) in FIGURES.items():
        shown = {label: view[kind] for label, view in views.items() if view[kind]}
        if shown:
            figures.save_figure(figure(shown), folder / name)
            yield folder / name


def _network(model: nn.Module) -> nn.Module:
    """Return the network inside a module, or the module itself where a parameter lies outside of its ``network``."""
    network = getattr(model, "network", None)
    whole = isinstance(network, nn.Module) and len([*network.parameters()]) == len([*model.parameters()])
    return network if whole else model


def load_weights(model: nn.Module, path: str) -> None:
    """Load a checkpoint, or weights alone, into a module or the network in it; refuse those of another."""
    given = tensors_of(opened(Path(path), "--checkpoint"))
    present = tensors_of(model)
    ours, theirs = beginnings(present, given)
    weights = {}
    for name, tensor in given.items():
        if name.startswith(theirs):
            weights[ours + name.removeprefix(theirs)] = tensor
    memory = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in present.items()}
    saved = {memory[name]: weights[name] for name in present if name in weights}
    for name in present:
        if memory[name] in saved:  # of tied weights a file may hold one name
            weights.setdefault(name, saved[memory[name]])
    refuse_other_weights(weights, present)
    for name, tensor in present.items():
        tensor.copy_(weights[name])
