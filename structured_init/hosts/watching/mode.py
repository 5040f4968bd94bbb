"""Seeing torch's operations below autograd, each in the module that runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules

BATCHED = ("bmm", "baddbmm")  # products of batches of matrices
Mode = TypeVar("Mode", bound="PassMode")
ProductName = tuple[str, int]  # of batches of matrices: the innermost module that runs, and how many it has run
composed = cache(torch._ops.OpOverload._can_decompose)  # asked of every operation of a pass


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of torch, as it ran."""

    func: Any
    name: str  # as torch has it, without its variant
    args: tuple
    kwargs: dict[str, Any]
    result: Any
    before: tuple  # the arguments, with a copy of a tensor that was overwritten

    @property
    def plain(self) -> str:
        """The name of the same operation that overwrites nothing."""
        return self.name.rstrip("_")


class PassMode(TorchDispatchMode):
    """See torch's operations below autograd, each with the module that runs it; composed ones come in their parts.

    Products of batches of matrices are counted in each module, so that two passes name the same ones alike.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = [""]  # plain names of the modules that run, the innermost last
        self.ran: set[str] = set()  # plain names of all modules that have run
        self.products: Counter[str] = Counter()  # of batches of matrices, by the innermost module, so far

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        if isinstance(func, HigherOrderOperator):
            way_out = ": use scaled_dot_product_attention for the initialization" if "flex" in func.name() else ""
            raise StructuredInitError(f"{func.name()} cannot be watched{way_out}")
        kwargs, name = kwargs or {}, func._schema.name.rpartition("::")[2]
        refuse_nested(*args)
        # Composed operations come whole from what is written out, and in inference mode.
        if func.namespace != "prim" and composed(func):
            with self:
                return func.decompose(*args, **kwargs)
        self.products[self.running[-1]] += name in BATCHED
        return self.operate(func, name, args, kwargs)

    @property
    def product(self) -> ProductName:
        """Which product of batches of matrices was the last in the module that runs."""
        return self.running[-1], self.products[self.running[-1]]

    def operate(self, func, name, args, kwargs):  # noqa: ANN001, ANN201
        """Carry an operation out, and look at it; ``name`` is that of torch, without its variant."""
        raise NotImplementedError

    def written_out(self, func, args, kwargs) -> Tensor:  # noqa: ANN001
        """Compute what a kernel of fused attention that runs in spite of ``sdpa_kernel`` gives, in parts."""
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        query, key, value, scale = (given.get(name) for name in ("query", "key", "value", "scale"))
        mask = given.get("attn_bias", given.get("attn_mask"))
        with self:
            groups = query.shape[1] // key.shape[1]
            if groups > 1:
                key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
            if mask is not None:
                logits = logits + mask
            if given.get("is_causal"):
                hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
                logits = logits.masked_fill(hidden, float("-inf"))
            return logits.softmax(-1) @ value


def is_fused(name: str) -> bool:
    """Say whether an operation is a kernel of fused attention, and not its definition in parts."""
    return name.startswith("_scaled_dot_product") and not name.endswith("_math")


def refuse_nested(*given: object) -> None:
    """Refuse tensors of several lengths, whose numbers lie in no grid."""
    if any(isinstance(each, Tensor) and each.is_nested for each in given):
        raise StructuredInitError(
            "nested (jagged) tensors are not watched: give samples of one length as a plain tensor"
        )


@contextmanager
def passing(model: nn.Module, mode: Mode) -> Iterator[Mode]:
    """Let a mode see what runs inside, and in which module; fused attention is written out."""

    def enter(*_: object, name: str) -> None:
        mode.running.append(name)
        mode.ran.add(name)

    def leave(*_: object) -> None:  # what a hook returns would replace what the module gave
        mode.running.pop()

    with ExitStack() as hooks:
        for name, module in named_plain_modules(model):
            hooks.callback(module.register_forward_pre_hook(partial(enter, name=name), prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        with sdpa_kernel(SDPBackend.MATH), mode:
            yield mode
