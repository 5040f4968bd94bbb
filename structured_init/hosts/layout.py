"""Where a host keeps the matrices of attention, and the one convention in which everybody else sees them.

A layout is checked against its module by what shapes and classes of layers tell, before anything is written.

Letters: H heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from structured_init.hosts.registry import class_path
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

PARTS = ("query", "key", "value", "output")


class _Heads:
    """Heads in one parameter, read and written by where they begin in it, flattened, and by two strides."""

    weight: Tensor
    starts: tuple[int, ...]
    head_dim: int
    width: int
    steps: tuple[int, int]

    @property
    def entries(self) -> Int64[Tensor, "heads head_dim width"]:
        """The index of every number in the flattened parameter."""
        channels = torch.tensor(self.starts)[:, None] + torch.arange(self.head_dim) * self.steps[0]
        return channels[..., None] + torch.arange(self.width) * self.steps[1]

    def get(self, weights: Weights) -> Float[Tensor, "heads head_dim width"]:
        """Return the heads, as a copy."""
        return torch.stack(self._views(weights.read(self.weight).contiguous()))

    def set(self, weights: Weights, value: Float[Tensor, "heads head_dim width"], by: str) -> None:
        """Write the heads into the overlay; the rest of the parameter keeps its value."""
        expected = (len(self.starts), self.head_dim, self.width)
        if tuple(value.shape) != expected:
            name = weights.names(self.weight)[0]
            raise StructuredInitError(f"'{name}' takes (heads, head_dim, width) = {expected}, got {tuple(value.shape)}")
        full = weights.edit(self.weight, by)
        flat = full.contiguous()
        for view, head in zip(self._views(flat), value, strict=True):
            view.copy_(head)
        if flat is not full:
            full.copy_(flat)

    def _views(self, full: Tensor) -> list[Tensor]:
        size, begin = (self.head_dim, self.width), full.storage_offset()
        return [full.as_strided(size, self.steps, begin + start) for start in self.starts]


@dataclass(frozen=True)
class Projection(_Heads):
    """One of the four matrices of an attention layer: a block of a host's parameter, cut into heads.

    ``nn.Linear`` stores (out, in). So query, key and value have their heads along axis 0, also inside a fused
    ``qkv``, where ``start`` says at which row the block begins, and the output projection has them along axis 1.
    A transposed ``Conv1D`` swaps the two. Where query, key and value alternate head by head, ``step`` says how far it
    is from one head to the next.

    Attributes:
        weight: the host's two-dimensional parameter, or what its parametrization computes.
        heads: how many heads the block holds.
        head_dim: rows (or columns) per head.
        axis: the axis of ``weight`` along which the heads are stacked. Of an ``nn.Linear``, a wrong one is refused.
        start: where the block begins on that axis.
        step: from the beginning of one head to that of the next; ``head_dim`` where nothing lies between them.
    """

    weight: Tensor = field(repr=False)
    heads: int
    head_dim: int
    axis: int = 0
    start: int = 0
    step: int | None = None

    @property
    def width(self) -> int:
        """D, the size of the other axis."""
        return self.weight.shape[1 - self.axis]

    @property
    def rows(self) -> Int64[Tensor, "heads head_dim"]:
        """Which rows, or columns, of the parameter it is."""
        begin = self.start + torch.arange(self.heads) * (self.step or self.head_dim)
        return begin[:, None] + torch.arange(self.head_dim)

    @property
    def steps(self) -> tuple[int, int]:
        """Strides in the flattened parameter, along a head and across it."""
        columns = self.weight.shape[1]
        return (columns, 1) if self.axis == 0 else (1, columns)

    @property
    def starts(self) -> tuple[int, ...]:
        """The index of every head's first entry in the flattened parameter."""
        step = self.step or self.head_dim
        return tuple((self.start + head * step) * self.steps[0] for head in range(self.heads))


@dataclass(frozen=True)
class StridedProjection(_Heads):
    """One of the four matrices where it is no block of rows or columns: heads in any order, channels in any stride.

    Use it for a parameter of three or more axes, for interleaved heads, for convolutions of kernel 1, and for queries
    of several heads that stand before the key that they share.

    Attributes:
        weight: the host's parameter itself, of any shape.
        starts: for every head, the index of its entry (0, 0) in the flattened parameter.
        head_dim: how many channels a head has.
        width: D, how many numbers of a token each channel reads; of the output projection, writes.
        steps: strides in the flattened parameter, from one channel of a head to the next and from one of the D numbers
            to the next.

    Example:
        >>> qkv = torch.zeros(3, 4, 32, 8)  # (query, key, value) × heads × D × head_dim
        >>> key = StridedProjection(qkv, tuple((4 + head) * 32 * 8 for head in range(4)), 8, 32, steps=(1, 8))
        >>> key.heads
        4
    """

    weight: Tensor = field(repr=False)
    starts: tuple[int, ...]
    head_dim: int
    width: int
    steps: tuple[int, int]

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return len(self.starts)


@dataclass(frozen=True)
class JoinedProjection:
    """One of the four matrices whose heads lie in parameters of their own, as where every head is a module."""

    parts: tuple[Projection | StridedProjection, ...]  # one after another, of one width and head_dim

    weight = property(lambda self: self.parts[0].weight)
    heads = property(lambda self: sum(part.heads for part in self.parts))
    head_dim = property(lambda self: self.parts[0].head_dim)
    width = property(lambda self: self.parts[0].width)

    def get(self, weights: Weights) -> Float[Tensor, "heads head_dim width"]:
        """Return the heads, as a copy."""
        return torch.cat([part.get(weights) for part in self.parts])

    def set(self, weights: Weights, value: Float[Tensor, "heads head_dim width"], by: str) -> None:
        """Write the heads into the overlay."""
        for part, heads in zip(self.parts, value.split([part.heads for part in self.parts]), strict=True):
            part.set(weights, heads, by)


Matrices = Projection | StridedProjection | JoinedProjection


def pieces(matrices: Matrices) -> tuple[Projection | StridedProjection, ...]:
    """Return the parts of heads that lie in parameters of their own; else the one block that there is."""
    return matrices.parts if isinstance(matrices, JoinedProjection) else (matrices,)


def overlap(one: Matrices, two: Matrices) -> bool:
    """Say whether two of the matrices have numbers in common: writing one would change the other."""

    def common(a: Projection | StridedProjection, b: Projection | StridedProjection) -> bool:
        if isinstance(a, Projection) and isinstance(b, Projection):  # no list of entries is needed
            return a.axis != b.axis or bool(torch.isin(a.rows, b.rows).any())
        return bool(torch.isin(a.entries, b.entries).any())

    return any(a.weight is b.weight and common(a, b) for a in pieces(one) for b in pieces(two))


@dataclass(frozen=True)
class AttentionLayout:
    """Where one attention module keeps its matrices, and what it does around them.

    Attributes:
        query, key, value, output: the projections; key and value may have fewer heads than query.
        scale: the factor on q·k before the softmax, or a function that gives it where it is learned; 1/√k where the
            host does not say otherwise.
        query_key_norm: the host normalizes q and k, so the scale of a query–key initialization has no effect.
        value_norm: the host normalizes between W_v and W_o, so the scale of W_v has no effect.
        between: what else lies between W_v and W_o, such as an activation or a gate; ``None`` where nothing does.
        rope: the host turns q and k by their positions, in pairs of coordinates.
        residual_depth: where the host divides the output projection's own start by √(this many residual branches).
        mixes_heads: the host mixes the heads' logits or maps, so no head is on its own.
        others: the queries and keys, left as they are, whose own softmax is added to the maps or subtracted.
        cross: keys and values come from other tokens than queries.
        causal: ``True`` where no token attends to later ones, ``False`` where some do; ``None`` takes it from the
            module's ``is_causal`` or from a forward pass. What a forward pass shows overrules what is written here.
        tokens: the tokens between which it attends, where they are not those of the model around it: a window, or a
            class token that alone asks.
    """

    query: Matrices
    key: Matrices
    value: Matrices
    output: Matrices
    scale: float | Tensor | Callable[[], float | Tensor] | None = None
    query_key_norm: bool = False
    value_norm: bool = False
    between: str | None = None
    rope: bool = False
    residual_depth: int | None = None
    mixes_heads: bool = False
    others: str | None = None
    cross: bool = False
    causal: bool | None = None
    tokens: TokenLayout | None = None

    @property
    def matrices(self) -> tuple[Matrices, Matrices, Matrices, Matrices]:
        """Query, key, value and output."""
        return self.query, self.key, self.value, self.output

    def parameters(self) -> list[Tensor]:
        """Return whatever holds a part of the four matrices; a fused parameter comes several times."""
        return [part.weight for matrices in self.matrices for part in pieces(matrices)]


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a model (or a tower of one): its grid, the tokens before it, and its positions if it has any.

    Attributes:
        grid: (rows, columns) of patches, or ``None`` for a sequence.
        prefix_tokens: class and register tokens that stand before the grid.
        positions: parameter or buffer of shape (…, tokens, D), whatever axes stand for the tokens, or (1, D, rows,
            columns) with ``features=1``; of an ``nn.Embedding`` its weight; ``None`` where the host adds none.
        first: the row of ``positions`` at which the grid begins; rows before it belong to prefix tokens.
        rope: whether the model turns queries and keys by their positions; ``None`` where its attention class tells.
        features: the axis of ``positions`` along which D lies.
    """

    grid: tuple[int, int] | None
    prefix_tokens: int = 0
    positions: Tensor | None = None
    first: int = 0
    rope: bool | None = None
    features: int = -1

    def __post_init__(self) -> None:
        if not isinstance(self.positions, Tensor | None):
            kind = type(self.positions).__name__
            raise StructuredInitError(f"TokenLayout: positions takes a tensor, not {kind}: give module.….weight")


@dataclass(frozen=True)
class ProjectionBias:
    """The bias that belongs to a projection's block of a host's parameter, or to several where heads lie apart."""

    tensors: tuple[Tensor, ...]  # the host's one-dimensional parameters
    rows: tuple[Int64[Tensor, "_ head_dim"], ...]  # of each, the entries of its heads

    def get(self, weights: Weights) -> Float[Tensor, "heads head_dim"]:
        """The bias of each head, as a copy."""
        return torch.cat([weights.read(each)[rows] for each, rows in zip(self.tensors, self.rows, strict=True)])

    def set(self, weights: Weights, value: Float[Tensor, "heads head_dim"], by: str) -> None:
        """Write the bias of each head into the overlay; the rest of a parameter keeps its value."""
        parts = value.split([len(rows) for rows in self.rows])
        for tensor, rows, part in zip(self.tensors, self.rows, parts, strict=True):
            weights.edit(tensor, by)[rows] = part.to(weights.read(tensor).dtype)


def projection_bias(module: nn.Module, projection: Matrices) -> ProjectionBias | None:
    """Find the bias of a query, key or value projection: that of the layer in ``module`` that owns its weight.

    ``None`` where there is none, where it belongs to some heads alone, or where its entries are not known.
    """
    found = [_bias(module, piece) for piece in pieces(projection)]
    return None if None in found else ProjectionBias(*zip(*found, strict=True))


def _bias(module: nn.Module, projection: Projection | StridedProjection) -> tuple[Tensor, Tensor] | None:
    for layer in module.modules():
        for weight, bias in (("weight", "bias"), ("in_proj_weight", "in_proj_bias")):
            owned, found = layer._parameters.get(weight), layer._parameters.get(bias)
            if owned is not projection.weight or found is None:
                continue
            if isinstance(projection, Projection):
                return (found, projection.rows) if len(found) == owned.shape[projection.axis] else None
            rows = projection.entries // owned[0].numel()  # outputs lie along the first axis
            one = found.shape == owned.shape[:1] and bool((rows == rows[..., :1]).all())
            return (found, rows[..., 0]) if one else None
    return None


# A layout against what it describes: what shapes and layer classes tell of a wrong one, before anything is written.

# Layer class → the axis of its weight along which its outputs lie; by path, so that nothing is imported to look.
OUTPUTS = {"torch.nn.modules.linear.Linear": 0, "transformers.pytorch_utils.Conv1D": 1}


def outputs_axis(layer: nn.Module) -> int | None:
    """Return the axis of a linear layer's weight along which its outputs lie; ``None`` for any other module."""
    return next((OUTPUTS[path] for cls in type(layer).__mro__ if (path := class_path(cls)) in OUTPUTS), None)


def checked_layout(layout: object, module: nn.Module) -> AttentionLayout:
    """Return a layout that its module does not contradict.

    Heads are outputs of the query, key and value projections and inputs of the output projection. So where a weight
    belongs to an ``nn.Linear`` or ``Conv1D``, its axis is known; a plain square parameter is taken on trust.
    """
    kind = type(module).__name__
    if not isinstance(layout, AttentionLayout):
        raise StructuredInitError(
            f"the function registered for {kind} returned {'None' if layout is None else type(layout).__name__}:"
            " it must return an AttentionLayout"
        )
    for part in PARTS:
        if problem := _problem(part, getattr(layout, part), module):
            raise StructuredInitError(f"the layout of {kind}: {part} {problem}")
    for one, two in (("query", "key"), ("output", "value")):
        served, serving = getattr(layout, one), getattr(layout, two)
        if served.head_dim != serving.head_dim or served.heads % serving.heads:
            has = f"{one} has {_heads(served)}, which {two}'s {_heads(serving)} cannot serve"
            raise StructuredInitError(f"the layout of {kind}: {has}")
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
    return outside(projection) if strided else _off_axis(part, projection, module)


def outside(projection: Projection | StridedProjection) -> str | None:
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
        outputs = outputs_axis(layer)
        if outputs is None or layer._parameters.get("weight") is not weight:
            continue
        right = 1 - outputs if part == "output" else outputs
        if axis != right:
            stores = "(out, in)" if outputs == 0 else "(in, out)"
            lie = f"its heads lie along axis {right}, not {axis}: axis={right}"
            return f"is '{name}', whose weight is {stores}, so {lie}"
    end = projection.start + (projection.heads - 1) * step + projection.head_dim
    if projection.start < 0 or end > weight.shape[axis]:
        return f"takes entries {projection.start} to {end} of axis {axis}, of a weight of shape {tuple(weight.shape)}"
    return None


def _heads(projection: Matrices) -> str:
    return f"{projection.heads} heads of width {projection.head_dim}"
