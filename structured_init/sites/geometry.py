"""A layout against what it describes: what shapes and layer classes tell of a wrong one, before anything is written."""

from __future__ import annotations

from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layout import PARTS, AttentionLayout, JoinedProjection, Matrices, Projection, StridedProjection
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


def _problem(part: str, projection: Matrices, module: nn.Module) -> str | None:
    """Say what is wrong with one projection; ``None`` where nothing is known to be."""
    if isinstance(projection, JoinedProjection):
        problems = (_problem(part, each, module) for each in projection.parts)
        return next(filter(None, problems), None) if projection.parts else "has no parts"
    if not isinstance(projection, Projection | StridedProjection):
        return f"is a {type(projection).__name__}: give a Projection, a StridedProjection or a JoinedProjection"
    weight = projection.weight
    if isinstance(weight, nn.Module):
        return f"is a {type(weight).__name__}, not its weight: give module.….weight"
    if not isinstance(weight, Tensor):  # quantized layers of torch have a method of that name
        return "is quantized: initialize the model before it is quantized" if callable(weight) else "holds no tensor"
    strided = isinstance(projection, StridedProjection)
    last = ("width", projection.width) if strided else ("step", projection.step or projection.head_dim)
    for name, number in (("heads", projection.heads), ("head_dim", projection.head_dim), last):
        if not isinstance(number, int) or number < 1:
            return f"needs {name} to be a whole number from 1, got {number!r}"
    return _outside(projection) if strided else _off_axis(part, projection, module)


def _outside(projection: StridedProjection) -> str | None:
    """Say which entries of its flattened parameter a projection takes that are not there."""
    across, along = projection.steps
    if min(*projection.starts, across, along) < 0:
        return f"needs starts and steps that are not negative, got {projection.starts} and {projection.steps}"
    span = (projection.head_dim - 1) * across + (projection.width - 1) * along
    first, last = min(projection.starts), max(projection.starts) + span
    if last >= projection.weight.numel():
        shape = tuple(projection.weight.shape)
        return f"takes entries {first} to {last} of a flattened weight of shape {shape}"
    return None


def _off_axis(part: str, projection: Projection, module: nn.Module) -> str | None:
    """Say that a block lies along the other axis of a layer's weight, or outside of it."""
    weight, axis, step = projection.weight, projection.axis, projection.step or projection.head_dim
    if weight.ndim != 2 or axis not in (0, 1):
        other = "; a StridedProjection takes a weight of any shape" if weight.ndim > 2 else ""
        return f"needs a two-dimensional weight and axis 0 or 1, got shape {tuple(weight.shape)} and axis {axis}{other}"
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


def _heads(projection: Matrices) -> str:
    return f"{projection.heads} heads of width {projection.head_dim}"
