"""Depthwise sites: every depthwise convolution of any model, and how deep in the model it stands.

Letters: C input channels, F filters (C times the multiplier), k kernel size along one axis, L depthwise layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from structured_init.hosts.attention_site import note_hidden_branch
from structured_init.hosts.registry import Where, first_names, selects, warn_of_idle, what_the_model_has
from structured_init.util.errors import StructuredInitError, shown
from structured_init.weights import Weights

KINDS = (nn.Conv1d, nn.Conv2d)


class DepthwiseConvSite:
    """One depthwise convolution, seen through an overlay.

    Attributes:
        name: the module's name in the model, e.g. ``"blocks.0.0.fn.0"``.
        module: the host's ``nn.Conv1d`` or ``nn.Conv2d``, or a subclass of one.
        depth: d = i/(L − 1), 0 in the first and 1 in the last of the model's L depthwise convolutions, in the order of
            the model and whatever ``where`` selects; 0 where there is only one.
    """

    def __init__(self, name: str, module: nn.Conv1d | nn.Conv2d, depth: float, weights: Weights) -> None:
        self.name, self.module, self.depth, self._weights = name, module, depth, weights

    @property
    def num_filters(self) -> int:
        """F: one filter per output channel, so C or, with a multiplier, a multiple of it."""
        return self.module.out_channels

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """(k,) of a 1-D convolution, (rows, columns) of a 2-D one, in weights; a dilation is not counted."""
        return tuple(self.module.kernel_size)

    @property
    def parametrized(self) -> bool:
        """Whether the weight is computed from other parameters, so that it cannot be written."""
        return not isinstance(self.module._parameters.get("weight"), nn.Parameter)

    @property
    def weight_name(self) -> str:
        """The weight's name in the model: what its draws are named after."""
        return self._weights.names(self.module.weight)[0]

    @property
    def filters(self) -> Float[Tensor, "filters ..."]:
        """The present filters, (F, *kernel)."""
        return self._weights.read(self.module.weight)[:, 0].clone()

    def write(self, filters: Float[Tensor, "filters ..."], by: str) -> None:
        """Write all filters; the bias keeps its value."""
        if tuple(filters.shape) != (expected := (self.num_filters, *self.kernel_size)):
            raise StructuredInitError(f"'{self.name}' takes filters of {expected}, got {tuple(filters.shape)}")
        self._weights.write(self.module.weight, filters.unsqueeze(1), by)
        note_hidden_branch(self._weights, self.name)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.kernel_size))
        return f"DepthwiseConvSite('{self.name}', filters={self.num_filters}, kernel={size}, depth={self.depth:.3g})"


def is_depthwise(module: nn.Module, kinds: type | tuple[type, ...] = KINDS) -> bool:
    """Say whether a module is a depthwise convolution: every filter reads one channel, out of several, at some pixels.

    A convolution of a single channel is an ordinary one, and a kernel of one weight has no spatial extent.
    """
    return isinstance(module, kinds) and module.groups == module.in_channels > 1 and math.prod(module.kernel_size) > 1


def depthwise_conv_sites(model: nn.Module | Weights, where: Where = None) -> list[DepthwiseConvSite]:
    """Find every depthwise convolution, in the order of the model and each weight once.

    Args:
        model: any model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.hosts.registry.selects`.
    """
    weights = model if isinstance(model, Weights) else Weights(model)
    found: dict[int, tuple[str, nn.Conv1d | nn.Conv2d]] = {}
    for name, module in weights.modules.items():
        if is_depthwise(module):
            weight = module._parameters.get("weight")
            found.setdefault(id(module if weight is None else weight), (name, module))
    last = max(len(found) - 1, 1)
    sites = [DepthwiseConvSite(*named, index / last, weights) for index, named in enumerate(found.values())]
    return [site for site in sites if selects(where, site.name, site)]


def required_depthwise_conv_sites(weights: Weights, where: Where, who: str) -> list[DepthwiseConvSite]:
    """Return the depthwise sites, and raise one line that says what the model has where there is none.

    What has a computed weight, or is of another class, is recorded as skipped and left out.
    """
    everywhere, sites = depthwise_conv_sites(weights), depthwise_conv_sites(weights, where)
    others = {
        name: f"{type(module).__name__} is no nn.Conv1d or nn.Conv2d"
        for name, module in weights.modules.items()
        if is_depthwise(module, _ConvNd) and not isinstance(module, KINDS)
    }
    if not sites:
        if everywhere:
            names = f"{len(everywhere)} depthwise convolutions ({first_names(everywhere)})"
            raise StructuredInitError(f"{who}: where={shown(where)} selects none of the {names}")
        has = ", ".join(sorted(set(others.values()))) or what_the_model_has(weights.model)
        raise StructuredInitError(f"{who} found no depthwise convolution; {has}")
    warn_of_idle(weights, where, [*(site.name for site in everywhere), *others], who, "depthwise convolution")
    for name, why in others.items():
        if not callable(where) and selects(where, name, None):
            weights.skip(name, why)
    for site in sites:
        if site.parametrized:
            weights.skip(site.name, "its weight is computed by a parametrization")
    return [site for site in sites if not site.parametrized]


def frozen_filters(weights: Weights, where: Where, *, bias: bool) -> Iterator[tuple[Tensor, bool]]:
    """Yield the filters of every site that can be written, and their biases if asked, each with ``False``."""
    for site in depthwise_conv_sites(weights, where):
        if not site.parametrized:
            yield site.module.weight, False
            if bias and site.module.bias is not None:
                yield site.module.bias, False
