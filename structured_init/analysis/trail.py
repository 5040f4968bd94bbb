"""From a softmax inside hand-written attention to the product with the values: what is multiplied there is the map.

Between the two a host may mix heads, add a second map, normalize again or cut columns off, so that the softmax itself
is not what the tokens are weighted with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

PRODUCTS = frozenset(
    {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__}
)
LINEAR = frozenset({F.linear, F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d})
EINSUM = frozenset({torch.einsum, torch.functional.einsum})
# What leaves numbers as they are in evaluation mode, but for their precision.
UNCHANGED = frozenset(
    {F.dropout, torch.dropout, torch.Tensor.contiguous}
    | {getattr(torch.Tensor, name) for name in ("to", "type_as", "type", "float", "half", "bfloat16", "clone")}
)


@dataclass
class Origin:
    """One softmax inside attention.

    Attributes:
        owner: whose attention it is.
        logits: what it is taken of.
        between: whether that comes from a product of two activations, and not of a linear map alone.
        left: how many of its numbers are still to be multiplied with values.
        products: how many times it was.
    """

    owner: object
    logits: Tensor
    between: bool = True
    left: int = 0
    products: int = 0


@dataclass(frozen=True)
class Product:
    """A map on its way into the product with the values.

    Attributes:
        origin: the softmax that it comes from.
        maps: the map, with queries and keys last.
        value_dim: the last axis of the values.
        unchanged: whether it is what the softmax gave, in whatever precision.
    """

    origin: Origin
    maps: Tensor
    value_dim: int
    unchanged: bool


@dataclass
class Trail:
    """Every tensor that comes from a softmax inside attention, until it is multiplied with values."""

    products: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    _held: dict[int, tuple[Tensor, Origin, bool]] = field(default_factory=dict)  # holding keeps an id from being reused

    def mark(self, func: Callable, args: tuple, kwargs: dict, result: object) -> None:
        """Take note of products of two activations, and of what is made of them up to the next linear map."""
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        active = [tensor for tensor in arguments if not isinstance(tensor, nn.Parameter)]
        multiplies = func in PRODUCTS or func in EINSUM or func in (torch.baddbmm, torch.Tensor.baddbmm)
        if multiplies or func in LINEAR:
            comes = multiplies and len(active) > 1
        else:
            comes = any(tensor in self.products for tensor in active)
        for leaf in tree_leaves(result) if comes else ():
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self.products[leaf] = None

    def begin(self, origin: Origin, result: Tensor) -> None:
        """Follow what a softmax gave."""
        origin.left = result.numel()
        self._held[id(result)] = (result, origin, True)

    def end(self, owner: object) -> list[Origin]:
        """Let go of what an owner's softmaxes gave, and return them."""
        gone = {key: held for key, held in self._held.items() if held[1].owner is owner}
        for key in gone:
            del self._held[key]
        return list({id(origin): origin for _, origin, _ in gone.values()}.values())

    def follow(self, func: Callable, args: tuple, kwargs: dict, result: object) -> Product | None:
        """Look at one call, and return the product with the values if it is one."""
        if not self._held:
            return None
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        held = next((self._held[id(tensor)] for tensor in arguments if self._is_held(tensor)), None)
        if held is None:
            return None
        _, origin, same = held
        product = self._product(func, args, arguments)
        if product is not None:
            maps, value_dim = product
            if origin.products and maps.numel() > origin.left:  # a second time: relative positions, or the like
                return None
            origin.left -= maps.numel()
            origin.products += 1
            return Product(origin, maps, value_dim, same and maps.shape == origin.logits.shape)
        same = same and func in UNCHANGED
        into = arguments[:1] if func is torch.Tensor.__setitem__ else tree_leaves(result)
        for tensor in into:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self._held[id(tensor)] = (tensor, origin, same)
        return None

    def _is_held(self, tensor: Tensor) -> bool:
        held = self._held.get(id(tensor))
        return held is not None and held[0] is tensor

    def _product(self, func: Callable, args: tuple, arguments: list[Tensor]) -> tuple[Tensor, int] | None:
        """Return a map and the last axis of its values, where a call multiplies the two."""
        if func in EINSUM:
            return self._summed(args[0], arguments) if isinstance(args[0], str) else None
        if len(arguments) != 2 or any(isinstance(tensor, nn.Parameter) for tensor in arguments):
            return None
        if func not in PRODUCTS or min(tensor.ndim for tensor in arguments) < 2:
            return None
        left, right = reversed(arguments) if func is torch.Tensor.__rmatmul__ else arguments
        if self._is_held(left):
            return left, right.shape[-1]
        return right.mT, left.shape[-2]

    def _summed(self, equation: str, arguments: list[Tensor]) -> tuple[Tensor, int] | None:
        """Return the same of an einsum, where one axis is summed over and another is the map's alone.

        Further operands, such as the output projection, may share the heads, and not the keys.
        """
        if "->" not in equation:
            return None
        # What an ellipsis stands for leads in all of them, as numpy has it.
        inputs, output = equation.replace(" ", "").replace("...", "").split("->")
        axes = inputs.split(",")
        place = next(place for place, tensor in enumerate(arguments) if self._is_held(tensor))
        for other, tensor in enumerate(arguments):
            if other == place or isinstance(tensor, nn.Parameter):
                continue
            rest = "".join(axes[further] for further in range(len(axes)) if further not in (place, other))
            product = _read(arguments[place], axes[place], tensor, axes[other], output, rest)
            if product is not None:
                return product
        return None


def _read(maps: Tensor, mine: str, values: Tensor, others: str, output: str, rest: str) -> tuple[Tensor, int] | None:
    """Return a map with queries and keys last, and the last axis of its values; None where no axis is the keys'."""
    keys = [axis for axis in mine if axis in others and axis not in output + rest]
    queries = [axis for axis in mine if axis not in others and axis in output]
    if len(keys) != 1 or not queries:
        return None
    order = [axis for axis in mine if axis not in queries + keys] + queries + keys
    channels = [axis for axis in others if axis not in mine]
    leading = maps.ndim - len(mine)
    maps = maps.permute([*range(leading), *(leading + mine.index(axis) for axis in order)])
    maps = maps.flatten(-1 - len(queries), -2)  # queries in blocks
    return maps, values.shape[others.index(channels[-1]) - len(others)] if channels else 1
