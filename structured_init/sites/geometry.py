"""A layout against what it describes: what shapes and layer classes tell of a wrong one, before anything is written."""

from __future__ import annotations

from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layout import PARTS, AttentionLayout, Projection
from structured_init.sites.registry import class_path

# Layer class → the axis of its weight along which its outputs lie; by path, so that nothing is imported to look.
OUTPUTS = {"torch.nn.modules.linear.Linear": 0, "transformers.pytorch_utils.Conv1D": 1}


def checked_layout(layout: object, module: nn.Module) -> AttentionLayout:
    """Return a layout that its module does not contradict.

    Heads are outputs of the query, key and value projections and inputs of the output projection. So where a weight
    belongs to an ``nn.Linear`` or ``Conv1D``, its axis is known; a plain square parameter is taken on trust.

    Raises:
        StructuredInitError: it is no ``AttentionLayout``, a block lies outside of its parameter, heads lie along the
            wrong axis, the parts do not go together, or a weight is quantized.
    """
    kind = type(module).__name__
    if not isinstance(layout, AttentionLayout):
        raise StructuredInitError(
            f"the function registered for {kind} returned {'None' if layout is None else type(layout).__name__}:"
            " it must return an AttentionLayout"
        )
    for part in PARTS:
        problem = _problem(part, getattr(layout, part), module)
        if problem:
            raise StructuredInitError(f"the layout of {kind}: {part} {problem}")
    query, key, value, output = (getattr(layout, part) for part in PARTS)
    if query.head_dim != key.head_dim or query.heads % key.heads:
        raise StructuredInitError(
            f"the layout of {kind}: query has {_heads(query)}, which key's {_heads(key)} cannot serve"
        )
    if value.head_dim != output.head_dim or output.heads % value.heads:
        raise StructuredInitError(
            f"the layout of {kind}: output has {_heads(output)}, which value's {_heads(value)} cannot serve"
        )
    return layout


def _problem(part: str, projection: Projection, module: nn.Module) -> str | None:
    """Say what is wrong with one projection; ``None`` where nothing is known to be."""
    weight, axis = projection.weight, projection.axis
    if isinstance(weight, nn.Module):
        return f"is a {type(weight).__name__}, not its weight: give module.….weight"
    if not isinstance(weight, Tensor):  # quantized layers of torch have a method of that name
        return "is quantized: initialize the model before it is quantized" if callable(weight) else "holds no tensor"
    step = projection.step or projection.head_dim
    for name, number in (("heads", projection.heads), ("head_dim", projection.head_dim), ("step", step)):
        if not isinstance(number, int) or number < 1:
            return f"needs {name} to be a whole number from 1, got {number!r}"
    if weight.ndim != 2 or axis not in (0, 1):
        return f"needs a two-dimensional weight and axis 0 or 1, got shape {tuple(weight.shape)} and axis {axis}"
    for name, layer in module.named_modules():
        outputs = next((OUTPUTS[path] for cls in type(layer).__mro__ if (path := class_path(cls)) in OUTPUTS), None)
        if outputs is None or layer._parameters.get("weight") is not weight:
            continue
        right = 1 - outputs if part == "output" else outputs
        if axis != right:
            stores = "(out, in)" if outputs == 0 else "(in, out)"
            return (
                f"is '{name}', whose weight is {stores}, so its heads lie along axis {right}, not {axis}: axis={right}"
            )
    end = projection.start + (projection.heads - 1) * step + projection.head_dim
    if projection.start < 0 or end > weight.shape[axis]:
        return f"takes entries {projection.start} to {end} of axis {axis}, of a weight of shape {tuple(weight.shape)}"
    return None


def _heads(projection: Projection) -> str:
    return f"{projection.heads} heads of width {projection.head_dim}"
