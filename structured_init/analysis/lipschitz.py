"""How far from orthogonal each layer of a network is, and an upper bound of its Lipschitz constant."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from structured_init.analysis.lipschitz_rules import Bounds, register_lipschitz
from structured_init.analysis.singular_values import CONVOLUTIONS, TRANSPOSED, layer_extremes
from structured_init.errors import StructuredInitError
from structured_init.files import write_json
from structured_init.layers import CayleyConv2d, CayleyLinear
from structured_init.names import plain_name
from structured_init.undisturbed import undisturbed

__all__ = ["LayerSpectrum", "LipschitzReport", "lipschitz_bound", "lipschitz_report", "register_lipschitz"]

MEASURED = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, CayleyConv2d, CayleyLinear)


@dataclass(frozen=True)
class LayerSpectrum:
    """The extreme singular values of one layer as an operator on inputs of the size that it saw.

    Attributes:
        name: its name in the model.
        kind: its class.
        input_shape: channels and size of one input.
        largest: the largest singular value; from below where it is an estimate.
        smallest: the smallest of the min(rows, columns) singular values; from above where it is an estimate.
        distance: from orthogonal: ‖QᵀQ − I‖ or, for contractions, ‖QQᵀ − I‖ (spectral norms).
        exact: whether both come from a complete decomposition.
    """

    name: str
    kind: str
    input_shape: tuple[int, ...]
    largest: float
    smallest: float
    distance: float
    exact: bool


@dataclass
class LipschitzReport:
    """The singular values of every convolution and linear layer of a model.

    No certificate follows from it: estimates err to the wrong side, and only linear layers are seen. See
    :func:`lipschitz_bound`.

    Attributes:
        layers: one entry per layer and size that it saw, in the order of the model.
        skipped: layers that were not measured, and why.
    """

    layers: list[LayerSpectrum]
    skipped: dict[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """Return a Markdown table with a row per layer; estimates carry a ≈."""
        lines = [
            "| layer | kind | input | largest | smallest | from orthogonal |",
            "|---|---|---|---|---|---|",
        ]
        for layer in self.layers:
            about, size = "" if layer.exact else "≈ ", "×".join(map(str, layer.input_shape))
            numbers = f"{about}{layer.largest:.6g} | {about}{layer.smallest:.6g} | {about}{layer.distance:.2g}"
            lines.append(f"| {layer.name} | {layer.kind} | {size} | {numbers} |")
        lines += [f"skipped {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        return json.loads(json.dumps(asdict(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; an older file is replaced only when the new one is whole."""
        write_json(path, self.to_dict())

    def __str__(self) -> str:
        return self.table()


def lipschitz_report(model: nn.Module, inputs: Tensor) -> LipschitzReport:
    """Measure every convolution and linear layer at the size that it really sees, from one look at ``inputs``.

    Args:
        model: any module that takes ``inputs``; modes, weights and random states stay as they are.
        inputs: an example batch; only its shape matters.
    """
    report = LipschitzReport([])
    with undisturbed(model), recorded_shapes(model, inputs) as shapes:
        for path, module in model.named_modules():
            name = plain_name(path, model)
            if not isinstance(module, MEASURED):
                continue
            seen = shapes.get(id(module), [])
            if not seen and not isinstance(module, nn.Linear | CayleyLinear):
                report.skipped[name] = "it received no input"
            for shape in seen or [(1, module.in_features)] * isinstance(module, nn.Linear | CayleyLinear):
                found = layer_extremes(module, shape)
                if found is None:
                    report.skipped[name] = f"{type(module).__name__} has a forward of its own"
                    continue
                distance = max(abs(found.largest**2 - 1), abs(found.smallest**2 - 1))
                size = tuple(shape[1:]) if not isinstance(module, nn.Linear | CayleyLinear) else (module.in_features,)
                entry = LayerSpectrum(name, _kind(module), size, found.largest, found.smallest, distance, found.exact)
                if entry not in report.layers:
                    report.layers.append(entry)
    return report


def lipschitz_bound(module: nn.Module, inputs: Tensor) -> float:
    """Return an upper bound of the L2 Lipschitz constant of a module in evaluation mode, computed from its layers.

    Every layer is measured anew: a bound follows from the weights as they are, not from what a class promises.
    Estimates of :func:`lipschitz_report` are not used. Rounding inside layers is allowed for as
    ``lipschitz_rules.rounding`` says; that of lower precision outside them (autocast) is not.

    Args:
        module: a layer, ``nn.Sequential`` of layers, or a module whose class has a rule.
        inputs: an example batch, which fixes the sizes; the bound holds for inputs of these sizes.

    Raises:
        StructuredInitError: the bound of a module is unknown; the message names ``register_lipschitz``.
    """
    with undisturbed(module), recorded_shapes(module, inputs) as shapes:
        return Bounds(module, shapes)(module)


@contextmanager
def recorded_shapes(model: nn.Module, inputs: Tensor) -> Iterator[dict[int, list[tuple[int, ...]]]]:
    """Run the model once and give the distinct shapes of the first input of each module, by the module's id."""
    shapes: dict[int, list[tuple[int, ...]]] = {}

    def record(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        first = arguments[0] if arguments else next(iter(keywords.values()), None)
        shape = tuple(first.shape) if isinstance(first, Tensor) else ()
        if shape and shape not in (seen := shapes.setdefault(id(module), [])):
            seen.append(shape)

    handles = [part.register_forward_pre_hook(record, with_kwargs=True) for part in model.modules()]
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not shapes:
        raise StructuredInitError(f"{type(model).__name__} passed no tensor to any of its modules")
    yield shapes


def _kind(module: nn.Module) -> str:
    return type(module).__name__
