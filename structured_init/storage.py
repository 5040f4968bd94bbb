"""Which of a model's tensors cannot be initialized, because of how torch stores them, and which never were."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules, plain_name, wrapped_child

HUGE = 1e10  # no library draws such a number
SUBNORMAL_SHARE = 1e-3  # of a float32 tensor; memory that holds integers or pointers has many, weights next to none


def refuse_unreadable(model: nn.Module) -> None:
    """Refuse a TorchScript model, and one with parameters without a shape, such as ``nn.LazyLinear``'s; name one."""
    if isinstance(model, torch.jit.ScriptModule):
        raise StructuredInitError("TorchScript hides what a model calls: give the model that it came from")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise StructuredInitError(
                f"'{name}' of a lazy layer has no shape yet: call the model once on a batch, then initialize it"
            )


def refuse_unwritable(model: nn.Module) -> None:
    """Refuse a model with a parameter that is float8 or sparse, or shares some of its memory; name it.

    Two parameters that are the same memory as a whole are tied and may be set.
    """
    lying: dict[tuple[int, torch.dtype], dict[str, Tensor]] = {}
    for name, tensor in model.named_parameters():
        if type(tensor.data) is not Tensor or tensor.is_meta:
            continue
        if tensor.layout != torch.strided:
            raise StructuredInitError(f"'{name}' is sparse and cannot be set: make it dense, with to_dense()")
        if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
            raise StructuredInitError(f"'{name}' is {tensor.dtype}: initialize the model before it is quantized")
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise StructuredInitError(f"several numbers of '{name}' lie in one place of memory: clone() it first")
        lying.setdefault((tensor.untyped_storage().data_ptr(), tensor.dtype), {})[name] = tensor.detach()
    for (_, dtype), together in lying.items():
        if len(together) == 1:
            continue
        memory = next(iter(together.values())).untyped_storage()
        taken, tied = torch.zeros(memory.nbytes() // dtype.itemsize, dtype=torch.bool), set()
        for name, tensor in together.items():
            view = tensor.shape, tensor.stride(), tensor.storage_offset()
            if view not in tied and taken.as_strided(*view).any():
                raise StructuredInitError(f"'{name}' overlaps another parameter in memory: clone() it first")
            taken.as_strided(*view).fill_(True)
            tied.add(view)


def refuse_flattened(model: nn.Module) -> None:
    """Refuse a model of which FSDP1 has put the weights into one flat parameter, whole or cut into shards.

    Only ``use_orig_params=True`` without shards leaves each weight under its name and in its shape.
    """
    for name, module in model.named_modules():
        if wrapped_child(module) != "_fsdp_wrapped_module" or module._handle is None:
            continue
        if not module._use_orig_params or module._handle.uses_sharded_strategy:
            raise StructuredInitError(
                f"FSDP1 has flattened the weights of '{plain_name(name, model) or 'the model'}': initialize the model"
                " before it is wrapped, or shard it with FSDP2 (torch.distributed.fsdp.fully_shard)"
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


def all_finite(value: Tensor) -> bool:
    """Say whether all numbers are finite: their sum then is, unless it overflows, and is read in half the time."""
    if not value.numel() or torch.isfinite(value.sum()):
        return True
    return all(map(torch.isfinite, torch.aminmax(value)))  # NaN where there is any


def not_finite(model: nn.Module, but: Collection[int] = ()) -> str | None:
    """Name the first parameter, but for some, that holds NaN or infinity and that can be read here."""
    for name, parameter in model.named_parameters():
        if id(parameter) in but or parameter.is_meta or type(parameter) is not nn.Parameter:
            continue
        # torch adds no float8, and cannot say whether one is finite.
        if parameter.is_floating_point() and parameter.dtype.itemsize > 1 and not all_finite(parameter.detach()):
            return f"'{plain_name(name, model)}' holds numbers that are not finite"
    return None


# Weights that a module computes (``torch.nn.utils.parametrize``): which they are, and what to write to set them.

SETTLING = 16  # forward passes in which the vectors of a spectral norm come to belong to their new weight


@dataclass(frozen=True)
class Computed:
    """A weight that is no parameter of its module but a function of some."""

    name: str  # what it would be called: "conv.weight"
    parts: parametrize.ParametrizationList  # the module that computes it

    @property
    def kinds(self) -> str:
        """The classes of its parametrizations, in the order in which they are applied."""
        return ", ".join(type(part).__name__.lstrip("_") for part in self.parts)

    def sources(self) -> list[Tensor]:
        """Return the parameters and floating-point buffers that it is computed from."""
        return _sources(self.parts)

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
                try:
                    value = part.right_inverse(value)
                except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
                    why = str(error).split("\n")[0]
                    kind = type(part).__name__
                    raise StructuredInitError(
                        f"'{self.name}' is computed by the parametrization {kind} and cannot be set: {why}"
                    ) from error
            originals = [value] if isinstance(value, Tensor) else list(value)
            names = ["original"] if parts.is_tensor else [f"original{i}" for i in range(parts.ntensors)]
            for name, original in zip(names, originals, strict=True):
                getattr(parts, name).copy_(original)
            for _ in range(SETTLING):
                reached = parts()
            return [tensor.detach() for tensor in _sources(parts)], reached.detach()


def _sources(parts: nn.Module) -> list[Tensor]:
    return [*parts.parameters(), *(buffer for buffer in parts.buffers() if buffer.is_floating_point())]


def find_computed(modules: Iterable[tuple[str, nn.Module]], tensor: Tensor) -> Computed | None:
    """Return the weight that ``tensor`` is, where it is a computed one.

    A module computes its weight anew whenever it is asked for, so that it can be recognized within
    ``parametrize.cached()`` alone, where it is computed once.

    Raises:
        StructuredInitError: it is computed by a hook, as ``torch.nn.utils.weight_norm`` does, and cannot be set.
    """
    for name, module in modules:
        parametrized = module.parametrizations if parametrize.is_parametrized(module) else {}
        for key, parts in parametrized.items():
            if getattr(module, key) is tensor:
                return Computed(f"{name}.{key}".lstrip("."), parts)
        for key, value in vars(module).items():
            if value is tensor:
                hooks = ", ".join(type(hook).__name__ for hook in module._forward_pre_hooks.values()) or "its module"
                raise StructuredInitError(
                    f"'{name}.{key}' is computed by {hooks} before each forward pass and cannot be set: initialize the "
                    "model before that, or use torch.nn.utils.parametrizations, whose weights can"
                )
    return None
