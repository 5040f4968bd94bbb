"""Convolutions, linear layers and activations by name or class path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from structured_init.errors import StructuredInitError, nearest
from structured_init.layers import CayleyConv2d, CayleyLinear, GroupSort, MaxMin

Builder = Callable[..., nn.Module]
Convolution = Callable[..., nn.Module]  # (in_channels, out_channels, kernel_size, stride=…)
Linear = Callable[[int, int], nn.Module]
Activation = Callable[[], nn.Module]

FAMILIES = ("cayley", "orthogonium", "plain")  # each with a convolution and a linear layer
ACTIVATIONS: dict[str, Activation] = {"max_min": MaxMin, "group_sort": GroupSort, "relu": nn.ReLU}


def convolution_by(name: str, arguments: Mapping[str, Any] | None = None) -> Convolution:
    """Return what builds a convolution from (in_channels, out_channels, kernel_size, stride=…).

    Args:
        name: ``cayley``, ``orthogonium`` (AOC: an explicit kernel, extra ``[robust]``), ``plain`` (torch's, circular),
            or a class path, which is called alike; the layer divides height and width by its stride.
        arguments: further arguments.

    Raises:
        StructuredInitError: the name is unknown, or its library is not installed.
    """
    known = {
        "cayley": lambda: CayleyConv2d,
        "orthogonium": _orthogonium_convolution,
        "plain": lambda: _plain_convolution,
    }
    build = _choose("conv", name, known)
    return lambda *sizes, stride=1: build(*sizes, stride=stride, **(arguments or {}))


def linear_by(name: str | None, conv: str) -> Linear:
    """Return what builds a linear layer from (in_features, out_features).

    Args:
        name: ``cayley``, ``orthogonium``, ``plain``, or a class path; None for the convolution's family, ``cayley``
            where the convolution is given by its class path.
        conv: the convolution's name.
    """
    known = {"cayley": lambda: CayleyLinear, "orthogonium": _orthogonium_linear, "plain": lambda: nn.Linear}
    return _choose("linear", name or (conv if conv in FAMILIES else "cayley"), known)


def activation_by(name: str) -> Activation:
    """Return what builds an activation: ``max_min`` as published, ``group_sort``, ``relu``, or a class path."""
    return _choose("activation", name, {key: lambda built=built: built for key, built in ACTIVATIONS.items()})


def _choose(what: str, name: str, known: Mapping[str, Callable[[], Builder]]) -> Builder:
    """Return what a name stands for; the libraries of other names are not asked for."""
    if name in known:
        return known[name]()
    module, _, cls = name.rpartition(".")
    if not module:
        raise StructuredInitError(f"unknown {what} '{name}': {nearest(name, known)}")
    try:
        return getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise StructuredInitError(f"{what} '{name}' cannot be imported: {error}") from error


def _same_size(kernel_size: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"padding": kernel_size // 2, "padding_mode": "circular", **arguments}


def _plain_convolution(
    in_channels: int, out_channels: int, kernel_size: int, stride: int, **arguments: Any
) -> nn.Conv2d:
    """Torch's convolution at the size and the border of the others: unconstrained, with a constant of its own."""
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride, **_same_size(kernel_size, arguments))


def _orthogonium_convolution() -> Convolution:
    adaptive = _orthogonium().AdaptiveOrthoConv2d

    def build(in_channels: int, out_channels: int, kernel_size: int, stride: int, **arguments: Any) -> nn.Conv2d:
        return adaptive(in_channels, out_channels, kernel_size, stride, **_same_size(kernel_size, arguments))

    return build


def _orthogonium_linear() -> Linear:
    return _orthogonium().OrthoLinear


def _orthogonium() -> Any:
    try:
        return importlib.import_module("orthogonium.layers")
    except ImportError as error:
        raise StructuredInitError(
            "the layers of 'orthogonium' need the extra 'robust': pip install 'structured-init[robust]'"
        ) from error
