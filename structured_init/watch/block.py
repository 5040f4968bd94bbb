"""From channels of a linear map to the block of its parameter that makes or takes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from structured_init.layout import Projection, StridedProjection
from structured_init.watch.found import NoLayout
from structured_init.watch.records import Linear


def outputs(what: str, linear: Linear, columns: Tensor) -> Projection | StridedProjection:
    """Return the block of a parameter that gives some of its outputs."""
    block = linear.block
    starts = block.starts.flatten()[columns.to(block.starts.device)].cpu()
    steps = starts.diff(dim=1)
    step = int(steps[0, 0]) if steps.numel() else 1
    if steps.numel() and not (steps == step).all():
        raise NoLayout(f"the channels of a head of its {what} lie in no regular order in '{linear.module}'")
    apart = block.offsets.diff()
    if apart.numel() and not (apart == apart[0]).all():
        raise NoLayout(f"the inputs of '{linear.module}' lie in no regular order in its parameter")
    across = int(apart[0]) if apart.numel() else 1
    if min(step, across) < 0:
        raise NoLayout(f"the channels of its {what} lie backwards in '{linear.module}', those that they meet do not")
    return _block(block.parameter, starts[:, 0].tolist(), columns.shape[1], block.inputs, (step, across))


def inputs(linear: Linear, columns: Tensor) -> Projection | StridedProjection:
    """Return the block of a parameter that takes some of its inputs."""
    block = linear.block
    if len(block.starts) > 1:
        raise NoLayout(f"'{linear.module}' multiplies what it gives with a matrix for each head")
    starts = block.starts[0].cpu()
    step = int(starts[1] - starts[0]) if len(starts) > 1 else 1
    entries = starts[0] + block.offsets.cpu()[columns]
    apart = entries.diff(dim=1)
    along = int(apart[0, 0]) if apart.numel() else 1
    if (len(starts) > 1 and not (starts.diff() == step).all()) or (apart.numel() and not (apart == along).all()):
        raise NoLayout(f"what it gives goes into '{linear.module}' in no regular order")
    if min(step, along) < 0:
        raise NoLayout(f"what it gives goes into '{linear.module}' backwards")
    return _block(block.parameter, entries[:, 0].tolist(), columns.shape[1], len(starts), (along, step))


def _block(
    parameter: nn.Parameter, starts: Sequence[int], head_dim: int, width: int, steps: tuple[int, int]
) -> Projection | StridedProjection:
    """Return rows or columns of a matrix where a block is that, and strides where not."""
    if parameter.ndim == 2:
        rows, columns = parameter.shape
        for axis, size, along, across in ((0, columns, columns, 1), (1, rows, 1, columns)):
            apart = [start // along for start in starts]
            step = apart[1] - apart[0] if len(apart) > 1 else head_dim
            even = all(two - one == step for one, two in pairwise(apart)) and step >= head_dim
            whole = all(start % along == 0 for start in starts) and (axis == 0 or max(starts) < columns)
            if (head_dim == 1 or steps[0] == along) and steps[1] == across and width == size and even and whole:
                return Projection(parameter, len(starts), head_dim, axis, apart[0], None if step == head_dim else step)
    return StridedProjection(parameter, tuple(starts), head_dim, width, steps)
