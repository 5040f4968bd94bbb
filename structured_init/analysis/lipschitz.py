"""An upper bound of the Lipschitz constant of a network.

The bound goes from layer to layer by one rule per class, and there is none where none is certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.analysis.singular_values import (
    CONVOLUTIONS,
    TRANSPOSED,
    cayley_matrices,
    circular_matrices,
    is_circulant,
    paddings,
)
from structured_init.errors import StructuredInitError, shown
from structured_init.layers import CayleyConv2d, CayleyLinear, GroupSort, MaxMin
from structured_init.names import named_plain_modules, wrapped_child
from structured_init.running import answering, as_inputs, pair, undisturbed

Rule = Callable[[Any, "Bounds"], float]
_RULES: dict[type[nn.Module], Rule] = {}


def register_lipschitz(cls: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register a rule for a class: ``rule(module, bounds) -> float``, an upper bound in evaluation mode.

    ``bounds(child)`` is the bound of a module inside, and ``bounds.shapes(module)`` the input shapes that it saw. The
    rule holds for subclasses that keep the ``forward`` of ``cls``::

        @register_lipschitz(Residual)
        def residual(module, bounds):
            return 1 + bounds(module.branch)
    """
    if not isinstance(cls, type):
        raise StructuredInitError(f"register_lipschitz takes a class of layers, got {shown(cls)}")

    def add(rule: Rule) -> Rule:
        _RULES[cls] = rule
        return rule

    return add


class Bounds:
    """The upper bound of any module inside a model, for the sizes that it saw in one look at an example batch."""

    def __init__(self, model: nn.Module, shapes: dict[int, list[tuple[int, ...]]]) -> None:
        self._shapes = shapes
        self._names = {id(module): name for name, module in named_plain_modules(model)}

    def __call__(self, module: nn.Module) -> float:
        """Return an upper bound of the module's Lipschitz constant; an error where none is known or hooks change it."""
        while (child := wrapped_child(module)) is not None:
            module = module._modules[child]
        kind, name = type(module).__name__, self._names.get(id(module)) or "the network itself"
        rule = next((_RULES[cls] for cls in type(module).__mro__ if cls in _RULES and _same_forward(module, cls)), None)
        if rule is None:
            raise StructuredInitError(
                f"no Lipschitz bound is known for {kind} ({name}): give one with "
                f"structured_init.analysis.lipschitz.register_lipschitz({kind})"
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise StructuredInitError(f"no Lipschitz bound is known for {kind} ({name}): it has forward hooks")
        bound = float(rule(module, self))
        if not bound >= 0:  # NaN as well
            raise StructuredInitError(f"the Lipschitz bound of {kind} ({name}) is {bound}: its weights are not finite")
        return bound

    def shapes(self, module: nn.Module) -> list[tuple[int, ...]]:
        """Return the shapes (with batch) of the inputs that the module saw; an error where it saw none."""
        if id(module) not in self._shapes:
            kind, name = type(module).__name__, self._names.get(id(module), "?")
            raise StructuredInitError(f"no Lipschitz bound is known for {kind} ({name}): it received no input")
        return self._shapes[id(module)]


def rounding(dtype: torch.dtype, terms: int, size: int = 1) -> float:
    """Return the factor by which a layer's own arithmetic may exceed its exact operator: 1 + ε (terms + 10 log₂ size).

    Sums of ``terms`` products err by at most ε·terms relative to the norms, orthonormal transforms by a small multiple
    of ε log₂ size.
    """
    return 1 + torch.finfo(dtype).eps * (terms + 10 * math.log2(max(size, 2)))


def _same_forward(module: nn.Module, cls: type[nn.Module]) -> bool:
    """A subclass, or an object, with a forward of its own is another function."""
    return type(module).forward is cls.forward and "forward" not in vars(module)


@register_lipschitz(nn.Sequential)
def _product(module: nn.Sequential, bounds: Bounds) -> float:
    return math.prod(bounds(part) for part in module)


for _cls in (MaxMin, GroupSort, nn.ReLU, nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle):
    register_lipschitz(_cls)(lambda module, bounds: 1.0)
for _cls in (nn.Tanh, nn.Hardtanh, nn.ReLU6, nn.Dropout, nn.Dropout2d, nn.ZeroPad2d):
    register_lipschitz(_cls)(lambda module, bounds: 1.0)


@register_lipschitz(nn.LeakyReLU)
def _leaky(module: nn.LeakyReLU, bounds: Bounds) -> float:
    return max(1.0, abs(module.negative_slope))


@register_lipschitz(nn.Linear)
def _linear(module: nn.Linear, bounds: Bounds) -> float:
    weight = module.weight.detach()
    return _largest(weight.double()) * rounding(weight.dtype, module.in_features)


@register_lipschitz(CayleyLinear)
def _cayley_linear(module: CayleyLinear, bounds: Bounds) -> float:
    dtype = module.precision(module.weight)
    return _largest(module.matrices(dtype).detach().double()) * rounding(dtype, module.in_features)


@register_lipschitz(CayleyConv2d)
def _cayley_convolution(module: CayleyConv2d, bounds: Bounds) -> float:
    dtype, terms = module.precision(module.weight), module.in_channels * module.stride**2
    return max(
        _largest(cayley_matrices(module, shape)) * rounding(dtype, terms, math.prod(shape[2:]))
        for shape in bounds.shapes(module)
    )


def _convolution(module: nn.Module, bounds: Bounds) -> float:
    terms = module.weight[0].numel()
    dtype = module.weight.dtype
    return max(_convolution_at(module, shape) for shape in bounds.shapes(module)) * rounding(dtype, terms)


for _cls in CONVOLUTIONS:
    register_lipschitz(_cls)(_convolution)


def _convolution_at(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Return a bound for one size: exact under circular padding, and otherwise that of a larger circular operator.

    A convolution with padding is y = R C P x: P writes x into an array of its padded size, then zeros up to a size N
    that the stride divides; C convolves that array circularly; R keeps the outputs whose windows lie inside the
    padded array, which are those that no wrapping touches. So ‖y‖ ≤ ‖R‖ ‖C‖ ‖P‖ ‖x‖ with ‖R‖ ≤ 1 and ‖C‖ exact by
    Fourier transform. PᵀP is diagonal and counts how often each pixel is copied: 1 with zeros, so ‖P‖ = 1; with
    reflected, replicated or repeated borders ‖P‖² is the largest count.
    """
    if is_circulant(module, shape):
        return _largest(circular_matrices(module, shape[2:]))
    padded = [n + sum(pad) for n, pad in zip(shape[2:], paddings(module), strict=True)]
    size = tuple(-(-n // s) * s for n, s in zip(padded, module.stride, strict=True))
    copies = math.prod(_copies(n, pad, module.padding_mode) for n, pad in zip(shape[2:], paddings(module), strict=True))
    return _largest(circular_matrices(module, size)) * math.sqrt(copies)


def _copies(size: int, pad: tuple[int, int], mode: str) -> int:
    """Return how often the most copied of ``size`` pixels stands in the padded line."""
    if mode == "zeros" or not sum(pad):
        return 1
    line = torch.arange(size, dtype=torch.float64).view(1, 1, -1)
    padded = nn.functional.pad(line, pad, mode=mode)
    return int(padded.flatten().long().bincount().max())


@register_lipschitz(nn.AvgPool2d)
def _average_pool(module: nn.AvgPool2d, bounds: Bounds) -> float:
    """‖A‖² ≤ ‖A‖₁ ‖A‖∞: each row sums to at most area/divisor, and each pixel is in at most ∏⌈k/s⌉ windows."""
    kernel, stride, padding = pair(module.kernel_size), pair(module.stride), pair(module.padding)
    if module.ceil_mode or (any(padding) and not module.count_include_pad):
        raise StructuredInitError("no Lipschitz bound is known for AvgPool2d whose windows have different divisors")
    area = math.prod(kernel)
    return math.sqrt(area * _overlap(kernel, stride)) / abs(module.divisor_override or area)


@register_lipschitz(nn.MaxPool2d)
def _max_pool(module: nn.MaxPool2d, bounds: Bounds) -> float:
    """Every output differs by at most the largest difference in its window; a pixel is in at most ∏k/s windows."""
    kernel, stride = pair(module.kernel_size), pair(module.stride)
    if pair(module.dilation) != (1, 1):
        return math.sqrt(math.prod(kernel))
    return math.sqrt(_overlap(kernel, stride))


def _overlap(kernel: tuple[int, int], stride: tuple[int, int]) -> int:
    return math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))


def _largest(matrices: Tensor) -> float:
    if not torch.isfinite(matrices).all():
        return math.nan
    return torch.linalg.svdvals(matrices.cpu()).max().item() * (1 + 1e-12)  # the decomposition's own rounding


__all__ = ["lipschitz_bound", "register_lipschitz"]


def lipschitz_bound(module: nn.Module, inputs: Any) -> float:
    """Return an upper bound of the L2 Lipschitz constant of a module in evaluation mode, computed from its layers.

    Every layer is measured anew: a bound follows from the weights as they are, not from what a class promises.
    Rounding inside layers is allowed for as
    ``lipschitz_rules.rounding`` says; that of lower precision outside them (autocast) is not.

    Args:
        module: a layer, ``nn.Sequential`` of layers, or a module whose class has a rule.
        inputs: an example batch: a tensor, a tuple of arguments, or a dictionary of named ones. The bound holds for
            inputs of its sizes.

    Raises:
        StructuredInitError: the bound of a module is unknown; the message names ``register_lipschitz``.
    """
    with undisturbed(module), recorded_shapes(module, inputs) as shapes:
        return Bounds(module, shapes)(module)


@contextmanager
def recorded_shapes(model: nn.Module, inputs: Any) -> Iterator[dict[int, list[tuple[int, ...]]]]:
    """Run the model once and give the distinct shapes of the first input of each module, by the module's id."""
    shapes: dict[int, list[tuple[int, ...]]] = {}

    def record(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        first = arguments[0] if arguments else next(iter(keywords.values()), None)
        shape = tuple(first.shape) if isinstance(first, Tensor) else ()
        if shape and isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)) and len(shape) < module.weight.ndim:
            raise StructuredInitError(f"inputs are a batch, and {type(module).__name__} saw {shape}: add a first axis")
        if shape and shape not in (seen := shapes.setdefault(id(module), [])):
            seen.append(shape)

    args, kwargs = as_inputs(inputs)
    with ExitStack() as hooks, answering(model):
        for part in model.modules():
            hooks.callback(part.register_forward_pre_hook(record, with_kwargs=True).remove)
        model(*args, **kwargs)
    if not shapes:
        raise StructuredInitError(f"{type(model).__name__} passed no tensor to any of its modules")
    yield shapes
