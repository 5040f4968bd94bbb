"""The one place where a model's tensors are changed: in place, checked, and undone when something fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import IO

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from structured_init.storage import all_finite
from structured_init.util.errors import StructuredInitError


class Writer:
    """Writes full values into a model's own tensors and remembers what stood there until it is closed.

    The tensors keep their identity, dtype, device, sharding and any attribute set on them, so an optimizer that was
    built before still holds the right objects. What was overwritten is kept in a temporary file, which stands where
    ``TMPDIR`` says. See :func:`writing`.
    """

    def __init__(self, broadcast: bool, closing: ExitStack) -> None:
        self.broadcast = broadcast
        self._closing = closing
        self._journal: dict[int, tuple[Tensor, int]] = {}  # where what was overwritten stands in the file
        self._trainable: dict[int, tuple[Tensor, bool]] = {}

    @torch.no_grad()
    def write(self, target: Tensor, value: Tensor, name: str, *, finite: bool = False) -> None:
        """Copy a full value on the CPU into ``target``, a parameter or buffer and possibly a ``DTensor``.

        Raises:
            StructuredInitError: as :func:`check` does, or the temporary file has no room.
        """
        check(target, value, name, finite=finite)
        self._remember(target, name)
        value = value.to(target.device, target.dtype)
        if isinstance(target, DTensor):
            target.copy_(distribute_tensor(value, target.device_mesh, target.placements))
            return
        if self.broadcast:
            value = value.contiguous()
            dist.broadcast(value, src=0)
        target.copy_(value)

    def train(self, target: Tensor, trainable: bool) -> None:
        """Set whether ``target`` receives a gradient."""
        self._trainable.setdefault(id(target), (target, target.requires_grad))
        target.requires_grad_(trainable)

    @torch.no_grad()
    def undo(self) -> None:
        """Put back every value and ``requires_grad`` as they were before the first write."""
        for target, trainable in self._trainable.values():
            target.requires_grad_(trainable)
        for target, offset in self._journal.values():
            local = _local(target)
            value = torch.empty(local.shape, dtype=local.dtype)
            self._file.seek(offset)
            self._file.readinto(value.reshape(-1).view(torch.uint8).numpy().data)
            local.copy_(value)
        self._journal.clear()
        self._trainable.clear()

    def _remember(self, target: Tensor, name: str) -> None:
        if id(target) in self._journal:
            return
        local = _local(target).detach()
        try:
            offset = self._file.seek(0, 2)
            self._file.write(local.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            self._file.flush()
        except OSError as error:
            raise StructuredInitError(
                f"'{name}' could not be backed up ({error.strerror}): the temporary file in"
                f" {tempfile.gettempdir()} needs as much space as the weights to be set; TMPDIR chooses its folder"
            ) from error
        self._journal[id(target)] = (target, offset)

    @cached_property
    def _file(self) -> IO[bytes]:
        return self._closing.enter_context(tempfile.TemporaryFile())


@contextmanager
def writing(broadcast: bool = False) -> Iterator[Writer]:
    """Give a writer for the block; leaving it by an exception restores every tensor.

    Args:
        broadcast: take rank 0's value on every rank of the default process group. Every rank must then write the
            same tensors in the same order. A sharded tensor always takes rank 0's value.

    Raises:
        StructuredInitError: ``broadcast`` without a process group.
    """
    if broadcast and not dist.is_initialized():
        raise StructuredInitError("broadcast=True needs a process group: torch.distributed.init_process_group()")
    with ExitStack() as closing:
        writer = Writer(broadcast, closing)
        try:
            yield writer
        except BaseException:
            writer.undo()
            raise


def check(target: Tensor, value: Tensor, name: str, *, finite: bool = False) -> None:
    """Raise a ``StructuredInitError`` unless ``value`` has the shape of ``target`` and is finite in its dtype.

    ``finite`` says that it is known to be so in its own dtype.
    """
    if value.shape != target.shape:
        raise StructuredInitError(f"'{name}' has shape {tuple(target.shape)}, but its new value {tuple(value.shape)}")
    if not (finite and value.dtype == target.dtype) and not all_finite(value.to(target.dtype)):
        raise StructuredInitError(f"the new value of '{name}' holds values that are not finite in {target.dtype}")


def full_value(tensor: Tensor, name: str, *, own: bool = False) -> Tensor:
    """Return a tensor's full value on the CPU, in float32 or, where it is that already, float64.

    With ``own`` it is never the tensor's own memory, so that it may be changed. For a ``DTensor`` this is a collective:
    every rank must ask, in the same order.

    Raises:
        StructuredInitError: the tensor has no memory (meta device).
    """
    if tensor.is_meta:
        raise StructuredInitError(f"'{name}' is on the meta device and has no memory: call model.to_empty(...) first")
    value = tensor.detach()
    if isinstance(value, DTensor):
        value = value.full_tensor()
    full = value.to("cpu", torch.promote_types(value.dtype, torch.float32))
    return full.clone() if own and full.data_ptr() == _local(tensor).data_ptr() else full


def empty_value(tensor: Tensor) -> Tensor:
    """Return memory in float32 for a tensor's full value: numbers drawn in it are the same whatever its dtype."""
    if isinstance(tensor, DTensor):
        return torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
    return torch.empty_like(tensor.detach(), dtype=torch.float32, device="cpu")  # in the order of its memory


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
