"""Weights that a module computes (``torch.nn.utils.parametrize``): which they are, and what to write to set them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from structured_init.errors import StructuredInitError

SETTLING = 16  # forward passes in which the vectors of a spectral norm come to belong to their new weight


@dataclass(frozen=True)
class Computed:
    """A weight that is no parameter of its module but a function of some.

    Attributes:
        name: what it would be called, e.g. ``"conv.weight"``.
        parts: the module that computes it.
    """

    name: str
    parts: parametrize.ParametrizationList

    @property
    def kinds(self) -> str:
        """The classes of its parametrizations, in the order in which they are applied."""
        return ", ".join(type(part).__name__.lstrip("_") for part in self.parts)

    def sources(self) -> list[Tensor]:
        """Return the parameters and floating-point buffers that it is computed from."""
        return [tensor for _, tensor in _sources(self.parts)]

    def invert(self, value: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return new values of :meth:`sources`, and the weight that they give, nearest to the one asked for.

        They come from the parametrizations' own ``right_inverse``, applied to a copy. What they keep beside, such as
        the vectors of a spectral norm, is that of the new weight.

        Raises:
            StructuredInitError: a parametrization has no ``right_inverse``, or it refuses the value.
        """
        parts = copy.deepcopy(self.parts).train()
        first = next(iter(self.sources()))
        value = value.to(first.device, first.dtype)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for part in reversed(parts):
                value = self._invert(part, value)
            originals = [value] if isinstance(value, Tensor) else list(value)
            names = ["original"] if parts.is_tensor else [f"original{i}" for i in range(parts.ntensors)]
            for name, original in zip(names, originals, strict=True):
                getattr(parts, name).copy_(original)
            for _ in range(SETTLING):
                reached = parts()
            return [tensor.detach() for _, tensor in _sources(parts)], reached.detach()

    def _invert(self, part: nn.Module, value: Tensor) -> Tensor | tuple[Tensor, ...]:
        try:
            return part.right_inverse(value)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
            missing = isinstance(error, AttributeError) and not hasattr(part, "right_inverse")
            why = "has no right_inverse" if missing else str(error).split("\n")[0]
            raise StructuredInitError(
                f"'{self.name}' is computed by the parametrization {type(part).__name__} and cannot be set: {why}"
            ) from error


def _sources(parts: nn.Module) -> list[tuple[str, Tensor]]:
    buffers = [(name, buffer) for name, buffer in parts.named_buffers() if buffer.is_floating_point()]
    return [*parts.named_parameters(), *buffers]


def find_computed(modules: Iterable[tuple[str, nn.Module]], tensor: Tensor) -> Computed | None:
    """Return the weight that ``tensor`` is, where it is a computed one.

    A module computes its weight anew whenever it is asked for, so that it can be recognized within
    ``parametrize.cached()`` alone, where it is computed once.

    Raises:
        StructuredInitError: it is computed by a hook, as ``torch.nn.utils.weight_norm`` does, and cannot be set.
    """
    for name, module in modules:
        if parametrize.is_parametrized(module):
            for key, parts in module.parametrizations.items():
                if getattr(module, key) is tensor:
                    return Computed(f"{name}.{key}" if name else key, parts)
        for key, value in vars(module).items():
            if value is tensor:
                hooks = ", ".join(type(hook).__name__ for hook in module._forward_pre_hooks.values()) or "its module"
                raise StructuredInitError(
                    f"'{name}.{key}' is computed by {hooks} before each forward pass and cannot be set: use"
                    " torch.nn.utils.parametrizations.weight_norm or spectral_norm, whose weights can"
                )
    return None


def describe_computed(modules: Iterable[tuple[str, nn.Module]], shape: torch.Size) -> str:
    """Name the computed weights of a shape, for an error message; empty where there is none."""
    found = [
        f"'{name}.{key}', computed by {Computed('', parts).kinds}"
        for name, module in modules
        if parametrize.is_parametrized(module)
        for key, parts in module.parametrizations.items()
        if getattr(module, key).shape == shape
    ]
    return f"; of that shape is {found[0]}, which only initialize() can read and set" if found else ""
