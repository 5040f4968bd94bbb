"""MLPs that need no batch: a module that holds two maps there and back is run alone on a few random tokens.

Letters: D embed_dim, F hidden width.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from structured_init.names import named_plain_modules
from structured_init.watch.mlp import FoundMlp, found_mlps, is_plain
from structured_init.watch.records import Linear
from structured_init.watch.watch import WatchMode
from structured_init.watch.watching import watching

TOKENS, SIDE = 5, 8  # of a sequence, and of a grid along each of its axes


def mlps_alone(module: nn.Module) -> list[FoundMlp]:
    """Run a module alone on random tokens and return the MLPs that are seen; none where it cannot be run so.

    It is given one tensor, tokens first or channels first, and ``None`` for whatever else it asks for. What it returns
    counts as what is added to the tokens, as the block around it does.

    Args:
        module: of any class, in evaluation mode and without gradients.
    """
    owners = {id(p): name for name, part in named_plain_modules(module) for p in part._parameters.values()}
    for tokens in _tokens(module):
        with without_hooks(module), watching(module) as seen:
            try:
                out = module(tokens, *_others(module))
            except Exception:
                continue
            _joined(seen, tokens, out)
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
    weight = next(p for p in module.parameters() if p.ndim > 1)
    channels, generator = weight.shape[1], torch.Generator().manual_seed(0)
    for width in dict.fromkeys((channels, weight.shape[0])):
        axes = weight.ndim - 2
        shapes = [(1, width, *[SIDE] * axes)] if axes else [(1, TOKENS, width), (1, SIDE, SIDE, width), (TOKENS, width)]
        for shape in shapes:
            yield torch.randn(shape, generator=generator).to(weight.device, weight.dtype)


def _others(module: nn.Module) -> list[None]:
    """Return ``None`` for every argument but the first that a module's forward cannot do without."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [each for each in inspect.signature(module.forward).parameters.values() if each.kind in kinds]
    return [None for each in given[1:] if each.default is inspect.Parameter.empty]


def _joined(seen: WatchMode, tokens: Tensor, out: object) -> None:
    """Take note of the linear map that a module returns the outputs of, in the shape of its tokens."""
    if isinstance(out, tuple | list) and out:
        out = out[0]
    tag = seen.tag(out) if isinstance(out, Tensor) and out.shape == tokens.shape else None
    if tag is not None and is_plain(tag.path) and isinstance(source := seen.source(tag), Linear):
        source.joined = True
