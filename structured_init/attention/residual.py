"""Where in a pass a layer's output is added to the residual stream: to what it was itself made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from structured_init.hosts.stream import rms_of
from structured_init.hosts.watching.records import tensors

SUMS = frozenset({"add", "add_", "addcmul", "addcmul_"})


@dataclass(eq=False)
class Made:
    """How a tensor came about."""

    of: Sequence[Made] = ()
    number: int = 0  # how many others were made before; 0 of parameters and of what the model is given
    kind: tuple[str, torch.Size] | None = None  # the operation that made it, and its shape
    branches: dict[Made, str] = field(default_factory=dict)  # outputs in it that were added to no stream yet → layer
    rms: float | None = None  # where it was asked for

    def back(self, steps: Sequence[int]) -> Made:
        """Return what some steps (see :meth:`steps_to`) lead to."""
        return self.of[steps[0]].back(steps[1:]) if steps else self

    def kinds(self, steps: Sequence[int]) -> set[str]:
        """Return the operations that some steps back lead through."""
        own = {self.kind[0]} if self.kind and steps else set()
        return own | self.of[steps[0]].kinds(steps[1:]) if steps else own

    def steps_to(self, origin: Made) -> list[int] | None:
        """Return which way leads back to what this was made of; ``None`` where it was not made of that."""
        ahead: list[tuple[Made, list[int]]] = [(self, [])]
        seen: set[Made] = set()
        for here, steps in ahead:
            if here is origin:
                return steps
            if here not in seen and here.number > origin.number:
                seen.add(here)
                ahead += [(each, [*steps, place]) for place, each in enumerate(here.of)]
        return None


class Residuals(TorchDispatchMode):
    """Follow what layers put out to the sum with what it was made of, and tell ``found`` before that sum is taken.

    ``found`` is given the layer, the other term, which is the stream, the output, and what returns what is added: the
    output, behind any gate or norm. Of tensors of the ``kinds`` given the root mean square is kept.
    """

    supports_higher_order_operators = True

    def __init__(self, found: Callable[[str, Tensor, Made, Callable], None], kinds: frozenset = frozenset()) -> None:
        super().__init__()
        self._found, self._kinds, self._count = found, kinds, 0
        self._made: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def made(self, tensor: Tensor) -> Made:
        """Return how a tensor was made."""
        return self._made.setdefault(tensor, Made())

    def puts_out(self, layer: str, output: Tensor) -> Made:
        """Take note that a tensor is what a layer puts out."""
        out = self.made(output)
        self._made[output] = Made((out,), out.number, out.kind, {**out.branches, out: layer})
        return out

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        kwargs, name = kwargs or {}, getattr(getattr(func, "_schema", None), "name", "").rpartition("::")[2]
        given = [leaf for leaf in tensors((args, kwargs)) if not is_traceable_wrapper_subclass(leaf)]
        of = [self.made(leaf) for leaf in given]
        branches = {out: layer for each in of for out, layer in each.branches.items()}
        if name in SUMS and branches:
            for stream, own in zip(given, of, strict=True):
                for out in [out for out in branches if out not in own.branches and self._like(stream, given)]:
                    if out.steps_to(own) is not None:
                        self._found(branches.pop(out), stream, out, partial(_without, stream, func, args, kwargs))
        result = func(*args, **kwargs)
        self._count += 1
        for each in tensors(result):
            if not is_traceable_wrapper_subclass(each):
                made = self._made[each] = Made(of, self._count, (name, each.shape), branches)
                made.rms = rms_of(each) if made.kind in self._kinds else None
        return result

    @staticmethod
    def _like(stream: Tensor, given: list[Tensor]) -> bool:
        """Say whether a term is as large as every other, as a bias or a scale for each channel is not."""
        return stream.ndim > 1 and stream.numel() == max(each.numel() for each in given)


def _without(term: Tensor, func: Callable[..., Tensor], args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Return what a sum is without one of its terms."""
    args, kwargs = tree_map(lambda leaf: torch.zeros_like(leaf) if leaf is term else leaf, (args, kwargs))
    return func(*args, **kwargs)
