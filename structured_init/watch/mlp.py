"""MLPs of a forward pass: a linear map, a function of single numbers, and a map back to the width of the tokens.

Letters: D embed_dim, F hidden width.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.watch import codes
from structured_init.watch.assemble import NORMS, PLAIN, POOLS, TURNS, common
from structured_init.watch.elementwise import POOLING, SILENT
from structured_init.watch.records import GATED, LATE, MIXED, POOLED, TWICE, Linear, Tag
from structured_init.watch.watch import WatchMode

SUMMING = POOLING | {"sum", "mean"}


@dataclass(frozen=True)
class FoundBlock:
    """Hidden units that lie one after another along an axis of a parameter.

    Attributes:
        weight: the parameter, a matrix or a convolution of kernel 1.
        axis: along which the hidden units lie.
        start: where they begin.
        size: F.
    """

    weight: nn.Parameter
    axis: int
    start: int
    size: int


@dataclass(frozen=True)
class FoundMlp:
    """One MLP of a forward pass.

    Attributes:
        name: the innermost module that holds both maps, or, where several MLPs have that, the first map's.
        first: the first layer; in a gated MLP that of the values. ``None`` where no parameter holds it as a block.
        gate: the first layer of the gate, if there is one.
        function: what lies between the two maps, such as ``"gelu"``.
    """

    name: str
    first: FoundBlock | None
    gate: FoundBlock | None
    function: str


def found_mlps(seen: WatchMode, owners: dict[int, str]) -> list[FoundMlp]:
    """Return every MLP of a pass once, in calling order.

    An MLP makes F numbers of the D of a token, puts each through a function or multiplies it with one that went through
    a function, makes D numbers of them, and adds them to other activations. Maps of one pooled token are none, nor are
    two maps with a convolution between them that is normalized or stands behind the function: those mix tokens. A
    bottleneck without a gate, of half of D or less, is an adapter.

    Args:
        seen: the pass.
        owners: identity of a parameter → the plain name of the module that holds it.
    """
    found: dict[tuple, tuple[list[str], FoundMlp]] = {}
    for second in seen.of(Linear):
        sides = _sides(seen, second)
        if sides is None:
            continue
        (value, units), gate, function = sides
        key = (value.block.key, None if gate is None else gate[0].block.key, second.block.key)
        if key not in found:
            names = [owners[id(linear.block.parameter)] for linear in (value, second)]
            blocks = (_block(value, units), None if gate is None else _block(*gate))
            if gate is not None and blocks[1] is None:
                blocks = (None, None)
            found[key] = (names, FoundMlp("", *blocks, function))
    shared = Counter(common(names) for names, _ in found.values())
    return [
        FoundMlp(around if shared[around := common(names)] == 1 else names[0], each.first, each.gate, each.function)
        for names, each in found.values()
    ]


Units = tuple[Linear, Int64[Tensor, " hidden"]]


def _sides(seen: WatchMode, second: Linear) -> tuple[Units, Units | None, str] | None:
    """Return the hidden units that a linear map takes, of values and of the gate, and the function between."""
    if second.taken is None or len(second.block.starts) > 1:
        return None
    first = seen.sources[int(codes.source(second.taken[0]))]
    inputs, width = second.y.shape[-1], len(second.taken)
    if not (isinstance(first, Linear) and second.joined) or first.block.inputs != inputs or _single(first):
        return None
    if {TWICE, LATE} & second.path or _summed(second.path) or (POOLS & second.path and NORMS & second.path):
        return None
    plain, narrow = codes.source(second.taken).unique().numel() == 1, 2 * width <= inputs
    if GATED not in second.path:
        function = _function(second.path)
        return ((first, codes.place(second.taken)), None, function) if function and plain and not narrow else None
    if second.factors is None:
        return None
    if any(_summed(tag.path) for tag in second.factors):
        return None
    units = [_units(seen, tag) for tag in second.factors]
    if None in units or any(linear.block.inputs != inputs for linear, _ in units):
        return None
    functions = [_function(tag.path) for tag in second.factors]
    if bool(functions[0]) == bool(functions[1]):
        return None
    value, gate = (1, 0) if functions[0] else (0, 1)
    return units[value], units[gate], functions[gate]


def _function(path: frozenset[str]) -> str:
    return ", ".join(sorted(path - PLAIN - NORMS - POOLS - TURNS - SILENT - {GATED}))


def _summed(path: frozenset[str]) -> bool:
    """Say whether tokens were summed, as the context of linear attention is, and not only convolved."""
    return POOLED in path and bool(path & SUMMING)


def is_plain(path: frozenset[str]) -> bool:
    """Say whether nothing but factors, norms and dropout happened to a tensor."""
    return not path & {GATED, LATE, MIXED} and not POOLS & path and not _function(path)


def _single(first: Linear) -> bool:
    """Say whether a map is given a single token of each sample."""
    return first.x.shape[1:-1].numel() == 1 if first.x.ndim > 2 else len(first.x) == 1


def _units(seen: WatchMode, tag: Tag) -> Units | None:
    """Return the outputs of a linear map that a tensor's channels are."""
    few = tag.codes
    if few.ndim == 4:
        columns = codes.over_pixels(few, few.shape)
        columns = None if columns is None else columns[..., 0, 0]
    else:
        columns = codes.over_tokens(few.reshape(-1, *few.shape[-2:]) if few.ndim > 2 else few[None])
    if columns is None or not (columns == columns[:1]).all() or codes.source(columns[0]).unique().numel() > 1:
        return None
    linear = seen.sources[int(codes.source(columns[0, 0]))]
    return (linear, codes.place(columns[0])) if isinstance(linear, Linear) else None


def _block(linear: Linear, units: Int64[Tensor, " hidden"]) -> FoundBlock | None:
    """Return where some outputs of a linear map lie in its parameter; ``None`` where they are no whole rows of it."""
    block, shape = linear.block, linear.block.parameter.shape
    if len(block.starts) > 1 or len(shape) < 2 or shape[2:].numel() > 1:
        return None
    starts = block.starts[0].cpu()[units.cpu().sort().values]
    for axis, apart, step in ((0, shape[1], 1), (1, 1, shape[1])):
        first, across = int(starts[0]), torch.arange(block.inputs) * step
        along = torch.arange(len(starts)) * apart
        if torch.equal(starts - first, along) and torch.equal(block.offsets.cpu(), across) and first % apart == 0:
            whole = block.inputs == shape[1 - axis] and (axis == 0 or first < shape[1])
            return FoundBlock(block.parameter, axis, first // apart, len(starts)) if whole else None
    return None
