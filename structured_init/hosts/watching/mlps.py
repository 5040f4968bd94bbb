"""MLPs of a forward pass: a linear map, a function of single numbers, and a map back to the width of the tokens.

Letters: D embed_dim, F hidden width.
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.hosts.layout import FirstLayer
from structured_init.hosts.watching import origins
from structured_init.hosts.watching.assemble import NORMS, PLAIN, POOLS, TURNS, common
from structured_init.hosts.watching.forward_pass import WatchMode, watching
from structured_init.hosts.watching.operations import POOLING, SILENT
from structured_init.hosts.watching.records import ADAPTED, GATED, LATE, MIXED, POOLED, TWICE, Linear, Tag
from structured_init.names import named_plain_modules

SUMMING = POOLING | {"sum", "mean"}


@dataclass(frozen=True)
class FoundMlp:
    """One MLP of a forward pass."""

    name: str  # the innermost module that holds both maps, or, where several MLPs have that, the first map's
    first: FirstLayer | None  # in a gated MLP that of the values; ``None`` where no parameter holds it as a block
    gate: FirstLayer | None


def found_mlps(seen: WatchMode, owners: dict[int, str]) -> list[FoundMlp]:
    """Return every MLP of a pass once, in calling order.

    An MLP makes F numbers of the D of a token, puts each through a function or multiplies it with one that went through
    a function, makes D numbers of them, and adds them to other activations. Maps of one pooled token are none, nor are
    two maps with a convolution between them that is normalized or stands behind the function: those mix tokens. A
    bottleneck without a gate, of half of D or less, is an adapter.
    """
    found: dict[tuple, tuple[list[str], FoundMlp]] = {}
    for second in seen.of(Linear):
        sides = _sides(seen, second)
        if sides is None:
            continue
        (value, units), gate = sides
        key = (value.block.key, None if gate is None else gate[0].block.key, second.block.key)
        if key not in found:
            names = [owners[id(linear.block.parameter)] for linear in (value, second)]
            blocks = (_block(value, units), None if gate is None else _block(*gate))
            if gate is not None and blocks[1] is None:
                blocks = (None, None)
            found[key] = (names, FoundMlp("", *blocks))
    shared = Counter(common(names) for names, _ in found.values())
    return [
        replace(each, name=around if shared[around := common(names)] == 1 else names[0])
        for names, each in found.values()
    ]


Units = tuple[Linear, Int64[Tensor, " hidden"]]


def _sides(seen: WatchMode, second: Linear) -> tuple[Units, Units | None] | None:
    """Return the hidden units that a linear map takes, of values and of the gate."""
    if second.taken is None or len(second.block.starts) > 1:
        return None
    first = seen.sources[int(origins.source(second.taken[0]))]
    inputs, width = second.y.shape[-1], len(second.taken)
    if not (isinstance(first, Linear) and second.joined) or first.block.inputs != inputs:
        return None
    if (first.x.shape[1:-1].numel() if first.x.ndim > 2 else len(first.x)) == 1:  # a single token of each sample
        return None
    if {TWICE, LATE} & second.path or _summed(second.path) or (POOLS & second.path and NORMS & second.path):
        return None
    plain, narrow = origins.source(second.taken).unique().numel() == 1, 2 * width <= inputs
    if GATED not in second.path:
        proven = _functions(second.path) and plain and not narrow
        return ((first, origins.place(second.taken)), None) if proven else None
    if second.factors is None:
        return None
    if any(_summed(tag.path) for tag in second.factors):
        return None
    units = [_units(seen, tag) for tag in second.factors]
    if None in units or any(linear.block.inputs != inputs for linear, _ in units):
        return None
    curved = [bool(_functions(tag.path)) for tag in second.factors]
    if curved[0] == curved[1]:
        return None
    return (units[1], units[0]) if curved[0] else (units[0], units[1])


def _functions(path: frozenset[str]) -> frozenset[str]:
    """Return the functions of single numbers among what was done."""
    return path - PLAIN - NORMS - POOLS - TURNS - SILENT - {GATED, ADAPTED}


def _summed(path: frozenset[str]) -> bool:
    """Say whether tokens were summed, as the context of linear attention is, and not only convolved."""
    return POOLED in path and bool(path & SUMMING)


def is_plain(path: frozenset[str]) -> bool:
    """Say whether nothing but factors, norms and dropout happened to a tensor."""
    return not path & {GATED, LATE, MIXED} and not POOLS & path and not _functions(path)


def _units(seen: WatchMode, tag: Tag) -> Units | None:
    """Return the outputs of a linear map that a tensor's channels are."""
    few = tag.codes
    if few.ndim == 4:
        columns = origins.over_pixels(few, few.shape)
        columns = None if columns is None else columns[..., 0, 0]
    else:
        columns = origins.over_tokens(few.reshape(-1, *few.shape[-2:]) if few.ndim > 2 else few[None])
    if columns is None or not (columns == columns[:1]).all() or origins.source(columns[0]).unique().numel() > 1:
        return None
    linear = seen.sources[int(origins.source(columns[0, 0]))]
    return (linear, origins.place(columns[0])) if isinstance(linear, Linear) else None


def _block(linear: Linear, units: Int64[Tensor, " hidden"]) -> FirstLayer | None:
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
            return FirstLayer(block.parameter, axis, first // apart, len(starts)) if whole else None
    return None


# MLPs that need no batch: a module that holds two maps there and back is run alone on a few random tokens.
# Letters: D embed_dim, F hidden width.

TOKENS, SIDE = 5, 8  # of a sequence, and of a grid along each of its axes


def mlps_alone(module: nn.Module) -> list[FoundMlp]:
    """Run a module alone on random tokens and return the MLPs that are seen; none where it cannot be run so.

    It is given one tensor, tokens first or channels first, and ``None`` for whatever else it asks for. What it returns
    counts as what is added to the tokens, as the block around it does.
    """
    owners = {id(p): name for name, part in named_plain_modules(module) for p in part._parameters.values()}
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [each for each in inspect.signature(module.forward).parameters.values() if each.kind in kinds]
    others = [None for each in given[1:] if each.default is inspect.Parameter.empty]
    for tokens in _tokens(module):
        with without_hooks(module), watching(module) as seen:
            try:
                out = module(tokens, *others)
            except Exception:
                continue
            out = out[0] if isinstance(out, tuple | list) and out else out
            tag = seen.tag(out) if isinstance(out, Tensor) and out.shape == tokens.shape else None
            if tag is not None and is_plain(tag.path) and isinstance(source := seen.source(tag), Linear):
                source.joined = True
            return found_mlps(seen, owners)  # other axes than those it takes first might mean something else to it
    return []


@contextmanager
def without_hooks(module: nn.Module) -> Iterator[None]:
    """Let nobody who listens to the model hear of it; shards are gathered by hooks, which stay."""
    if any(hasattr(parameter, "full_tensor") for parameter in module.parameters()):
        yield
        return
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    kept = [(part, kind, getattr(part, kind)) for part in module.modules() for kind in kinds]
    for part, kind, _ in kept:
        setattr(part, kind, OrderedDict())
    try:
        yield
    finally:
        for part, kind, hooks in kept:
            setattr(part, kind, hooks)


def _tokens(module: nn.Module) -> Iterator[Tensor]:
    """Yield random inputs that the first matrix of a module may be made for."""
    weight = next(p for p in module.parameters() if p.ndim > 1 and p.numel() > max(p.shape))  # no scale per channel
    channels, generator = weight.shape[1], torch.Generator().manual_seed(0)
    for width in dict.fromkeys((channels, weight.shape[0])):
        axes = weight.ndim - 2
        shapes = [(1, width, *[SIDE] * axes)] if axes else [(1, TOKENS, width), (1, SIDE, SIDE, width), (TOKENS, width)]
        for shape in shapes:
            yield torch.randn(shape, generator=generator).to(weight.device, weight.dtype)
