"""Which axes of a host's map are samples, heads, queries and keys: found from shapes alone, and refused where open.

Letters: B batch, W windows, H heads, N queries, M keys, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.sites.attention import ATTENTION

HEADS = ("num_heads", "heads", "n_heads", "n_head", "num_attention_heads", "nhead")


class AxesError(StructuredInitError):
    """The axes of a map are not those of attention between tokens, or cannot be told apart."""


@dataclass(frozen=True)
class Arrangement:
    """How a host's map becomes (batch, heads, queries, keys).

    Attributes:
        host: the shape in which the host computes it.
        split: heads that lie behind the samples in axis 0, which is taken apart; 1 where it is the samples' alone.
        axis: the heads' axis once axis 0 is taken apart; ``None`` where there is none. The other axes before the
            queries are windows, which count as samples.
    """

    host: tuple[int, ...]
    split: int = 1
    axis: int | None = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        apart = self._apart()
        heads = 1 if self.axis is None else apart[self.axis]
        return math.prod(apart[:-2]) // heads, heads, *apart[-2:]

    def rows(self, samples: int) -> int:
        """Return how many entries of the host's first axis hold the first ``samples`` of the batch."""
        if len(self.host) == 2:
            return self.host[0]
        windows = self.shape[0] // self._apart()[0]
        return math.ceil(samples / windows) * self.split

    def __call__(self, maps: Tensor) -> Float[Tensor, "batch heads queries keys"]:
        """Arrange a map, of which the first axis may have been cut to :meth:`rows`."""
        if self.split > 1:
            maps = maps.unflatten(0, (-1, self.split))
        maps = maps.unsqueeze(-3) if self.axis is None else maps.movedim(self.axis, -3)
        return maps.reshape(-1, *maps.shape[-3:])

    def _apart(self) -> tuple[int, ...]:
        return (self.host[0] // self.split, self.split, *self.host[1:]) if self.split > 1 else self.host


def arrangement(host: tuple[int, ...], heads: int | None, batches: Iterable[int]) -> Arrangement:
    """Return how a map of shape ``host``, whose last axes are queries and keys, is to be read.

    Read are (B, H, N, M), (B·H, N, M), (B·H, W, N, M) and, with H in any place behind B, (B, …, H, …, N, M). W or
    B·W in place of B is read as well.

    Args:
        host: the shape; its last two axes are queries and keys.
        heads: how many heads the module has; ``None`` where it does not say.
        batches: the lengths that a batch may have, up to a factor: the first axes of what module and model are given.

    Raises:
        AxesError: no axis has the length of the heads or of the batch, or several have that of the heads.
    """
    batches = set(batches)
    if len(host) == 2:
        return Arrangement(host, axis=None)
    if len(host) == 3:
        together = heads is not None and heads > 1
        if together and not (host[0] % heads == 0 and _is_batch(host[0] // heads, batches)):
            raise AxesError(f"axis 0 of {host} is not batch × {heads} heads")
        found = Arrangement(host, split=heads, axis=1) if together else Arrangement(host, axis=None)
    elif heads is None:
        found = Arrangement(host, axis=len(host) - 3)
    else:
        found = _with_heads(host, heads, batches)
    if not _is_batch(found.shape[0], batches):
        raise AxesError(f"no axis of {host} is the batch ({_few(batches)})")
    return found


def _with_heads(host: tuple[int, ...], heads: int, batches: set[int]) -> Arrangement:
    """Return which of the axes behind the first are the heads, where the module says how many it has."""
    places = [axis for axis in range(1, len(host) - 2) if host[axis] == heads]
    if len(places) > 1:
        raise AxesError(f"several axes of {host} may be the {heads} heads")
    if places:
        return Arrangement(host, axis=places[0])
    samples, rest = divmod(host[0], heads)
    if rest == 0 and samples in (batches - {1} or batches):
        return Arrangement(host, split=heads, axis=1) if heads > 1 else Arrangement(host, axis=None)
    raise AxesError(f"no axis of {host} is the {heads} heads")


def refuse_channels(
    host: tuple[int, ...],
    value_dim: int,
    heads: int,
    module: nn.Module,
    inputs: Iterable[tuple[int, ...]],
    *,
    between: bool = True,
) -> None:
    """Raise where a map lies between channels: each head's channels are its queries, and its values are tokens.

    Which axis of an input holds the channels is told by the linear layers and convolutions of the module. Where a head
    has as many channels as there are tokens, shapes do not tell, and nothing is raised.

    Args:
        host: the map's shape; its last two axes are queries and keys.
        value_dim: the last axis of what it is multiplied with.
        heads: H.
        module: the module that computes it.
        inputs: the shapes of what the module is given.
        between: whether its logits are a product of two activations: those of linear attention are not.

    Raises:
        AxesError: it does.
    """
    queries, keys = host[-2:]
    widths = _widths(module)
    for tokens, channels in _readings(inputs):
        if not between and channels in widths and {queries, keys} == {tokens, channels // heads}:
            raise AxesError(f"its maps {host} lie between tokens and the {channels // heads} channels of a head")
        between_channels = queries == keys and heads * queries == channels and value_dim == tokens
        if between_channels and channels in widths and keys != tokens:
            raise AxesError(f"its maps {host} relate the {queries} channels of a head, not tokens")


def heads_of(module: nn.Module) -> int | None:
    """Return how many heads a module has: by its layout where it is known, else by its attributes, else ``None``."""
    describe = ATTENTION.find(module)
    if describe is not None:
        return describe(module)[0].query.heads
    numbers = (getattr(module, name, None) for name in HEADS)
    return next((number for number in numbers if isinstance(number, int) and not isinstance(number, bool)), None)


def _is_batch(length: int, batches: set[int]) -> bool:
    """Say whether an axis may be the batch, or its windows; 1 is a batch packed into one sequence."""
    return length == 1 or any(batch and length % batch == 0 for batch in batches)


def _readings(inputs: Iterable[tuple[int, ...]]) -> Iterable[tuple[int, int]]:
    """Yield (tokens, channels) of every input, once with the channels last and once with them behind the batch."""
    for _, *axes in (shape for shape in inputs if len(shape) >= 3):
        yield math.prod(axes[:-1]), axes[-1]
        yield math.prod(axes[1:]), axes[0]


def _widths(module: nn.Module) -> set[int]:
    widths = set()
    for part in module.modules():
        if isinstance(part, nn.Linear):
            widths.add(part.in_features)
        elif isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            widths.add(part.in_channels)
    return widths


def _few(batches: set[int]) -> str:
    return " or ".join(map(str, sorted(batches))) or "none was given"
