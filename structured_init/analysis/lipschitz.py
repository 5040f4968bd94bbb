"""An upper bound of the Lipschitz constant of a network, by one rule per class of its layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.layers import CayleyConv2d, CayleyLinear, MaxMin
from structured_init.layers.cayley import frequency_response
from structured_init.util.errors import StructuredInitError

Rule = Callable[[Any, Tensor], float]
RULES: dict[type[nn.Module], Rule] = {}


def register_lipschitz(cls: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register a rule for a class: ``rule(module, inputs) -> float``, an upper bound in evaluation mode.

    ``inputs`` is an example batch of what the module receives. The rule holds for subclasses that keep the ``forward``
    of ``cls``::

        @register_lipschitz(Residual)
        def residual(module, inputs):
            return 1 + lipschitz_bound(module.branch, inputs)
    """

    def add(rule: Rule) -> Rule:
        RULES[cls] = rule
        return rule

    return add


@torch.no_grad()
def lipschitz_bound(module: nn.Module, inputs: Tensor) -> float:
    """Return an upper bound of the L2 Lipschitz constant of a module in evaluation mode, computed from its layers.

    Every layer is measured: a bound follows from the weights as they are, not from what a class promises. Rounding
    inside layers is allowed for as :func:`rounding` says; that of lower precision outside them (autocast) is not.

    Args:
        module: a layer, ``nn.Sequential`` of layers, or a module whose class has a rule.
        inputs: an example batch; the bound holds for inputs of its size.

    Raises:
        StructuredInitError: the bound of a module is unknown; the message names ``register_lipschitz``.
    """
    kind = type(module).__name__
    if module._forward_hooks or module._forward_pre_hooks:
        raise StructuredInitError(f"no Lipschitz bound is known for {kind}: it has forward hooks")
    for cls in type(module).__mro__:
        # A subclass, or an object, with a forward of its own is another function.
        if cls in RULES and type(module).forward is cls.forward and "forward" not in vars(module):
            return RULES[cls](module, inputs)
    raise StructuredInitError(
        f"no Lipschitz bound is known for {kind}: give one with structured_init.analysis.register_lipschitz({kind})"
    )


def rounding(dtype: torch.dtype, terms: int, size: int = 1) -> float:
    """Return the factor by which a layer's own arithmetic may exceed its exact operator: 1 + ε (terms + 10 log₂ size).

    Sums of ``terms`` products err by at most ε·terms relative to the norms, orthonormal transforms by a small multiple
    of ε log₂ size.
    """
    return 1 + torch.finfo(dtype).eps * (terms + 10 * math.log2(max(size, 2)))


def largest_singular_value(matrices: Tensor) -> float:
    """Return the largest singular value of any of the matrices, measured in double precision."""
    wide = matrices.to(torch.promote_types(matrices.dtype, torch.float64)).cpu()
    return torch.linalg.svdvals(wide).max().item() * (1 + 1e-12)  # the decomposition's own rounding


@register_lipschitz(nn.Sequential)
def product_of_layers(module: nn.Sequential, inputs: Tensor) -> float:
    bound = 1.0
    for layer in module:
        bound *= lipschitz_bound(layer, inputs)
        inputs = layer(inputs)
    return bound


@register_lipschitz(MaxMin)
@register_lipschitz(nn.ReLU)
@register_lipschitz(nn.Identity)
@register_lipschitz(nn.Flatten)
def at_most_one(module: nn.Module, inputs: Tensor) -> float:
    return 1.0


@register_lipschitz(nn.Linear)
def linear(module: nn.Linear, inputs: Tensor) -> float:
    return largest_singular_value(module.weight) * rounding(module.weight.dtype, module.in_features)


@register_lipschitz(CayleyLinear)
def cayley_linear(module: CayleyLinear, inputs: Tensor) -> float:
    dtype = module.precision(module.weight)
    return largest_singular_value(module.matrices(dtype)) * rounding(dtype, module.in_features)


@register_lipschitz(CayleyConv2d)
def cayley_convolution(module: CayleyConv2d, inputs: Tensor) -> float:
    dtype, (height, width) = module.precision(module.weight), inputs.shape[-2:]
    terms, pixels = module.in_channels * module.stride**2, height * width // module.stride**2
    return largest_singular_value(module.matrices(dtype, (height, width))) * rounding(dtype, terms, pixels)


@register_lipschitz(nn.Conv2d)
def circular_convolution(module: nn.Conv2d, inputs: Tensor) -> float:
    """Exact by Fourier transform: the padding only turns phases, and each frequency has a matrix of its own."""
    side, stride = module.kernel_size[0], module.stride[0]
    height, width = inputs.shape[-2:]
    shape = (module.kernel_size, module.stride, module.padding, module.padding_mode, module.groups, module.dilation)
    known = ((side, side), (stride, stride), (side // 2, side // 2), "circular", 1, (1, 1))
    if shape != known or (side % 2, height % stride, width % stride) != (1, 0, 0):
        raise StructuredInitError(
            "no Lipschitz bound is known for Conv2d but with circular padding of half its square, odd kernel, a stride "
            "that divides the input, and without groups or dilation"
        )
    response = frequency_response(module.weight.double(), height, width, stride)
    return largest_singular_value(response) * rounding(module.weight.dtype, module.weight[0].numel())


__all__ = ["lipschitz_bound", "register_lipschitz"]
