"""Which of a model's tensors cannot be initialized, because of how torch stores them, and which never were."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from structured_init.errors import StructuredInitError
from structured_init.names import named_plain_modules, plain_name, wrapped_child

HUGE = 1e10  # no library draws such a number
SUBNORMAL_SHARE = 1e-3  # of a float32 tensor; memory that holds integers or pointers has many, weights next to none


def refuse_lazy(model: nn.Module) -> None:
    """Refuse a model that has parameters without a shape, such as those of ``nn.LazyLinear``.

    Raises:
        StructuredInitError: names the first of them.
    """
    for named in (model.named_parameters(), model.named_buffers()):
        for name, tensor in named:
            if is_lazy(tensor):
                raise StructuredInitError(
                    f"'{name}' of a lazy layer has no shape yet: call the model once on a batch, then initialize it"
                )


def refuse_flattened(model: nn.Module) -> None:
    """Refuse a model of which FSDP1 has put the weights into one flat parameter, whole or cut into shards.

    Only ``use_orig_params=True`` without shards leaves each weight under its name and in its shape.

    Raises:
        StructuredInitError: names the first module whose weights are flat.
    """
    for name, module in model.named_modules():
        if wrapped_child(module) != "_fsdp_wrapped_module" or module._handle is None:
            continue
        if not module._use_orig_params or module._handle.uses_sharded_strategy:
            raise StructuredInitError(
                f"FSDP1 has flattened the weights of '{plain_name(name, model) or 'the model'}': initialize the model"
                " before it is wrapped, or shard it with FSDP2 (torch.distributed.fsdp.fully_shard)"
            )


def refuse_inference(tensor: Tensor, name: str) -> None:
    """Refuse to write to a tensor that was made under ``torch.inference_mode``.

    Raises:
        StructuredInitError: names the tensor.
    """
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise StructuredInitError(
            f"'{name}' was made under torch.inference_mode and cannot be changed: build the model outside of it"
        )


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that keep their weights packed, out of reach of parameters and buffers, by name."""
    for name, module in named_plain_modules(model):
        if hasattr(module, "_packed_params"):  # torch.ao.nn.quantized, dynamic and static
            yield name, module


def uninitialized(value: Tensor) -> str | None:
    """Say why numbers look like memory that nobody has written to; ``None`` where they do not.

    Memory of a process that is zero, or holds the numbers of an older tensor, cannot be told from weights.
    """
    finite = value.isfinite()
    if not finite.all():
        return f"{int((~finite).sum()):,} of {value.numel():,} numbers are not finite"
    size = value.abs()
    if value.dtype != torch.float16 and size.max() >= HUGE:
        return f"its largest number is {size.max().item():.1e}"
    subnormal = int(((size > 0) & (size < torch.finfo(value.dtype).tiny)).sum())
    if value.dtype != torch.float16 and subnormal > SUBNORMAL_SHARE * value.numel():
        return f"{subnormal:,} of {value.numel():,} numbers are below {torch.finfo(value.dtype).tiny:.0e}"
    return None
