"""MLPs, by the shapes of their matrices: D to a hidden width F, with or without a gate, and back.

Letters: D embed_dim, F hidden width, which is larger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from structured_init.util.names import within


@dataclass(frozen=True)
class Mlp:
    """The matrices of one MLP.

    Attributes:
        module: the innermost module that holds them.
        up: D to F: one matrix, in which a gate may be fused with the values, or the gate's and theirs.
        down: F to D.
    """

    module: nn.Module
    up: tuple[nn.Parameter, ...]
    down: nn.Parameter

    @property
    def width(self) -> int:
        """D, the smaller of the two."""
        return min(self.down.shape[:2])


def mlps(modules: Mapping[str, nn.Module], attending: Collection[nn.Parameter] = ()) -> dict[str, Mlp]:
    """Return name → MLP of every module with two or three matrices that lead to a hidden width and back.

    A convolution of kernel 1 is a matrix too, and other weights beside them, such as a depthwise convolution's, do not
    matter. Of two maps up, one is the gate's; of two maps in all, the first that was built leads up. An MLP of
    one width, more maps than that, and experts that share a weight of three axes are not told.

    Args:
        modules: those of any network, by name and in order.
        attending: parameters of attention, which may lie in the same module.
    """
    found: dict[str, Mlp] = {}
    taken = {id(each) for each in attending}
    for name, module in reversed(modules.items()):  # inner ones first
        if not any(within(inner, name) for inner in found):
            maps = [each for each in module.parameters() if is_map(each) and id(each) not in taken]
            if (both := _up_and_down(maps)) is not None:
                found[name] = Mlp(module, *both)
    return dict(reversed(found.items()))


def is_map(parameter: Tensor) -> bool:
    """Say whether a parameter may be a linear map of single tokens."""
    return parameter.ndim > 1 and parameter.shape[2:].numel() == 1 and min(parameter.shape[:2]) > 1


def _up_and_down(maps: list[nn.Parameter]) -> tuple[tuple[nn.Parameter, ...], nn.Parameter] | None:
    """Return the maps to the hidden width and the one back, which is like no other; ``None`` where they are others."""
    alone = [each for each in maps if sum(each.shape == other.shape for other in maps) == 1]
    if len(maps) not in (2, 3) or not alone:
        return None
    down = alone[-1]
    up = tuple(each for each in maps if each is not down)
    rows, columns = down.shape[:2]
    fitting = {(columns, rows)}
    if len(up) == 1:  # or a gate beside the values: of nn.Linear, of Conv1D
        fitting |= {(2 * columns, rows), (columns, 2 * rows)}
    fits = rows != columns and all(tuple(each.shape[:2]) in fitting for each in up)
    return (up, down) if fits else None
