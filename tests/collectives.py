"""What an initializer sends between ranks: counted as its collectives are called, and from the shapes of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Traffic(TorchDispatchMode):
    """Sums the bytes that this rank must receive and send, whatever the algorithm of the library underneath.

    An all-gather of N equal chunks brings a rank N − 1 of them and takes as much from it, as a ring does it; a scatter
    brings every rank but the source one chunk, and takes N − 1 from the source; a broadcast brings every rank but the
    source the tensor, which the source sends once; an all-reduce is a ring's, a scatter among all and a gather.

    Attributes:
        rank: of this process.
        ranks: N.
        received: bytes so far.
        sent: bytes so far.
        calls: collectives so far, by name.
    """

    rank: int
    ranks: int

    def __post_init__(self) -> None:
        super().__init__()
        self.received = self.sent = 0
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it becomes operations on shards, and these are asked again
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(func._opname, args)
        return result

    def _count(self, name: str, args: Sequence[Any]) -> None:
        source = self.rank == 0
        if name == "all_gather_into_tensor":
            chunk = args[0].nbytes
            self._add(name, (self.ranks - 1) * chunk, (self.ranks - 1) * chunk)
        elif name == "scatter_":
            chunk = _bytes(args[0])
            self._add(name, 0 if source else chunk, (self.ranks - 1) * chunk if source else 0)
        elif name == "broadcast_":
            whole = _bytes(args[0])
            self._add(name, 0 if source else whole, whole if source else 0)
        elif name == "all_reduce":
            share = 2 * (self.ranks - 1) * args[0].nbytes // self.ranks
            self._add(name, share, share)
        elif name not in ("wait_tensor", "_wrap_tensor_autograd"):
            raise RuntimeError(f"a collective that is not counted: {name}")

    def _add(self, name: str, received: int, sent: int) -> None:
        self.received += received
        self.sent += sent
        self.calls[name] = self.calls.get(name, 0) + 1


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def sharded_bytes(shapes: Iterable[Sequence[int]], itemsize: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the bytes that a rank receives and sends when parameters sharded along axis 0 are each set once.

    The present value is gathered on every rank, and the new one is scattered from rank 0. Both move chunks of ⌈rows /
    N⌉ rows, the last of them filled up.

    Args:
        shapes: full shapes of the parameters; one that is set by two parts of a composition stands there twice.
        itemsize: bytes of a number.
        ranks: N.
        rank: 0 or another.
    """
    chunks = sum(math.ceil(shape[0] / ranks) * math.prod(shape[1:]) * itemsize for shape in shapes)
    others = (ranks - 1) * chunks
    return (others, 2 * others) if rank == 0 else (others + chunks, others)
