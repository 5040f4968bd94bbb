"""Weights: the overlay that initializers read and write, flushed into the model layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from structured_init.log import Log
from structured_init.model_view import ModelView, Seen
from structured_init.storage import Computed, find_computed
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_names
from structured_init.util.progress import bar
from structured_init.writer import Writer, check, full_value

T = TypeVar("T")
CHUNK = 2**16  # numbers measured at a time: no second copy of a large tensor
FAR = 0.1  # variance over mean square below which their difference loses digits


@dataclass(frozen=True)
class Statistics:
    """Mean, standard deviation and root mean square of one tensor's entries."""

    mean: float
    std: float
    rms: float

    @classmethod
    def of(cls, value: Tensor) -> Statistics:
        """Measure ``value`` part by part; numbers far from zero beside their spread once more, in float64.

        Several parts are summed in float32, at a third of the time: the mean is then right to 1e-8 of the rms.
        """
        parts = value.flatten().split(CHUNK)
        precision = torch.float64 if len(parts) == 1 else None
        count = max(value.numel(), 1)
        total = square = 0.0
        for part in parts:  # both while the processor has it at hand
            total += part.sum(dtype=precision).item()
            square += torch.dot(part, part).item()
        mean = total / count
        if (variance := square / count - mean * mean) > FAR * square / count:
            return cls(mean, math.sqrt(variance), math.sqrt(square / count))
        mean = sum(part.sum(dtype=torch.float64).item() for part in parts) / count
        square = deviation = 0.0
        for part in (part.to(torch.float64, copy=True) for part in parts):
            square += torch.linalg.vector_norm(part).item() ** 2
            deviation += torch.linalg.vector_norm(part.sub_(mean)).item() ** 2
        return cls(mean, math.sqrt(deviation / count), math.sqrt(square / count))

    @property
    def finite(self) -> bool:
        """Whether every number is finite; of very large ones, whose squares are not, it may be no."""
        return math.isfinite(self.rms)


@dataclass
class Update:
    """One tensor of the model and its new value."""

    target: Tensor  # the model's own parameter or buffer
    value: Tensor | None  # full, on the CPU, float32 or float64; ``None`` when it is written
    by: list[str] = field(default_factory=list)  # who set it and why, in order: ["Mimetic: query_key"]
    before: Statistics | None = None  # of the value that the host library had built
    after: Statistics | None = None  # of the value as written


class Weights(Log):
    """A model's parameters and buffers as full CPU tensors, copied on the first write.

    Sites read and write through it, so that two parts that share one fused parameter compose, and later parts see
    earlier ones. With a writer it is flushed layer by layer (see :meth:`each`) and holds one layer at a time; without
    one it keeps every change and the model is never touched.

    Args:
        model: any module; or the view of one that other overlays have.
        writer: where changes go; ``None`` to only plan.
        batch: what the model takes, to find and check attention with; or a function that gives it, which is called
            only where nothing else says where the attention is.
        progress: what is under way, for a bar that shows which layer is reached; empty: none is shown.
    """

    def __init__(
        self,
        model: nn.Module | ModelView,
        writer: Writer | None = None,
        batch: object = None,
        progress: str = "",
    ) -> None:
        super().__init__()
        self.view = model if isinstance(model, ModelView) else ModelView(model, batch)
        self.model = self.view.model
        self.progress = progress
        self.writer = writer
        self.updates: dict[int, Update] = {}
        self._pending: set[int] = set()
        self._computed: dict[int, tuple[Computed, Tensor]] = {}  # the tensors as well, so that no id is used again
        self._names = tensor_names(self.model)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Every module by its plain name, in order."""
        return self.view.modules

    @property
    def batch(self) -> object:
        """What the model takes; ``None`` where nobody gave it, or it is only offered."""
        return self.view.batch

    @property
    def seen(self) -> Seen:
        """What a forward pass has shown; nothing before it was run."""
        return self.view.seen or Seen()

    @property
    def can_ask(self) -> bool:
        """Whether a batch was given, or somebody is there to be asked for one."""
        return self.view.can_ask

    def ask(self) -> object:
        """Return the batch; see :meth:`ModelView.ask`."""
        return self.view.ask()

    def names(self, tensor: Tensor) -> tuple[str, ...]:
        """Return every name that ``tensor`` has in the model; tied weights have several.

        Raises:
            StructuredInitError: the tensor is no parameter or buffer of the model.
        """
        if id(tensor) not in self._names:
            computed = find_computed(self.modules.items(), tensor)
            if computed is None:
                raise StructuredInitError(
                    f"a tensor of shape {tuple(tensor.shape)} is no parameter or buffer of the model: a layout names"
                    " the parameter itself, no slice, reshape or copy of it; a weight that is computed by a"
                    " parametrization can be read and set by initialize() alone"
                )
            self._computed[id(tensor)] = (computed, tensor)
            self._names[id(tensor)] = (computed.name,)
        return self._names[id(tensor)]

    def read(self, tensor: Tensor) -> Tensor:
        """Return the present full value, with every change so far. Do not modify it: see :meth:`edit`."""
        update = self.updates.get(id(tensor))
        if update is not None and update.value is not None:
            return update.value
        return self._below(tensor)

    def _below(self, tensor: Tensor, *, own: bool = False) -> Tensor:
        """Return the full value that the overlay lies on; with ``own``, one that can be modified."""
        return full_value(tensor, self.names(tensor)[0], own=own)

    def edit(self, tensor: Tensor, by: str) -> Tensor:
        """Return the overlay's own copy of a floating-point ``tensor`` to modify in place; ``by``: who and why."""
        update = self._update(tensor, by)
        if update.value is None:
            update.value = self._below(tensor, own=True)
            update.before = update.before or Statistics.of(update.value)
        return update.value

    def write(self, tensor: Tensor, value: Tensor, by: str, *, own: bool = False) -> None:
        """Set the whole of a floating-point ``tensor``, whose dtype and device are kept; ``by``: who and why.

        With ``own`` the value was made for this alone: it is kept without a copy, and flush says if it is not finite.
        """
        check(tensor, value, self.names(tensor)[0], finite=own)
        update = self._update(tensor, by)
        update.before = update.before or Statistics.of(self._below(tensor))
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        update.value = value.detach().to("cpu", dtype, copy=not own)

    def _update(self, tensor: Tensor, by: str) -> Update:
        if not tensor.is_floating_point():
            raise StructuredInitError(f"'{self.names(tensor)[0]}' holds {tensor.dtype}, not floating-point numbers")
        update = self.updates.setdefault(id(tensor), Update(tensor, None))
        if by not in update.by:
            update.by.append(by)
        self._pending.add(id(tensor))
        self.written.append(id(tensor))
        return update

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over sites or modules and flush after each: this is what bounds memory by one layer."""
        for item in bar(items, self.progress):
            yield item
            self.flush()

    def flush(self) -> None:
        """Write pending changes into the model and let go of their values; without a writer, only check them."""
        for key in sorted(self._pending, key=lambda key: self._names[key][0]):
            update = self.updates[key]
            if key in self._computed:
                self._settle(update, *self._computed[key])
            self._put(update)
        self._pending.clear()

    def _put(self, update: Update) -> None:
        name = self._names[id(update.target)][0]
        update.after = Statistics.of(update.value)
        if self.writer is None:
            check(update.target, update.value, name, finite=update.after.finite)
        elif id(update.target) in self._computed:
            update.target.detach().copy_(update.value)  # the value that torch has cached; its sources are written
            update.value = None
        else:
            self.writer.write(update.target, update.value, name, finite=update.after.finite)
            update.value = None

    def _settle(self, update: Update, computed: Computed, target: Tensor) -> None:
        """Write what a computed weight is computed from, and take the weight that comes of it."""
        check(target, update.value, computed.name)
        values, reached = computed.invert(update.value)
        reached = full_value(reached, computed.name)
        if not torch.allclose(reached, update.value, rtol=1e-3, atol=1e-3 * update.value.abs().max().item()):
            self.note(computed.name, f"{computed.kinds} keeps the weight to a constraint: it is not what was asked for")
        update.value = reached
        for source, value in zip(computed.sources(), values, strict=True):
            name = self.names(source)[0]
            present = full_value(source, name)
            same = not present.is_meta and torch.equal(present, full_value(value, name))
            if same and not isinstance(source, nn.Parameter) and id(source) not in self.updates:
                continue  # a mask, and what else does not depend on the weight
            before = Statistics.of(present)
            part = self.updates.setdefault(id(source), Update(source, None, before=before))
            part.value = full_value(value, name)
            part.by.extend(who for who in update.by if who not in part.by)
            self._put(part)


class TrialWeights(Weights):
    """An overlay over an overlay: what is written to it stays in it."""

    def __init__(self, below: Weights) -> None:
        super().__init__(below.view, progress=below.progress)
        self._lower = below

    def _below(self, tensor: Tensor, *, own: bool = False) -> Tensor:
        value = self._lower.read(tensor)
        return value.clone() if own else value


def tensor_names(model: nn.Module) -> dict[int, tuple[str, ...]]:
    """Map each parameter's and buffer's id to its names, free of what wrappers add."""
    names: dict[int, list[str]] = {}
    plain = plain_names(model)
    parameters, buffers = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    for name, tensor in (*parameters, *buffers):
        names.setdefault(id(tensor), []).append(plain(name))
    return {key: tuple(dict.fromkeys(value)) for key, value in names.items()}
