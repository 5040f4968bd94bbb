"""Which axes of a host's map are samples, heads, queries and keys: found from shapes alone, and refused where open.

Letters: B batch, W windows, H heads, N queries, M keys, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import described_attention

Compute = Callable[[int], Tensor]  # (samples, or entries of axis 0) → map
HEADS = ("num_heads", "heads", "n_heads", "n_head", "num_attention_heads", "nhead")


class AxesError(StructuredInitError):
    """The axes of a map are not those of attention between tokens, or cannot be told apart."""


class SamplesOrHeadsError(AxesError):
    """There are as many samples as heads, and either axis may be either: with one sample they can be told apart."""


@dataclass(frozen=True)
class Arrangement:
    """How a host's map becomes (batch, heads, queries, keys)."""

    host: tuple[int, ...]  # the shape in which the host computes it
    # heads that lie behind the samples in axis 0, which is taken apart; 1 where it is the samples' alone
    split: int = 1
    # the heads' axis once axis 0 is taken apart; None where there is none. The other axes before the queries are
    # windows, which count as samples
    axis: int | None = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        apart = self._apart()
        heads = 1 if self.axis is None else apart[self.axis]
        return math.prod(apart[:-2]) // heads, heads, *apart[-2:]

    def rows(self, samples: int) -> int:
        """Return how many entries of the host's first axis hold the first ``samples`` of the batch."""
        if len(self.host) == 2 or self.axis == 0:
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


def arrangement(
    host: tuple[int, ...], heads: int | None, batches: Iterable[int], heads_first: bool | None = None
) -> Arrangement:
    """Return how a map of shape ``host``, whose last axes are queries and keys, is to be read.

    Read are (B, H, N, M), (H, B, N, M), (B·H, N, M), (B·H, W, N, M) and, with H in any place behind B,
    (B, …, H, …, N, M); W or B·W may stand in place of B. ``heads`` is ``None`` where the module does not say;
    ``batches`` are the lengths that a batch may have, up to a factor. ``heads_first`` says which of (B, H, N, M) and
    (H, B, N, M) it is where B = H. An error where no axis has the length of the heads or of the batch, or several that
    of the heads.
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
        found = _with_heads(host, heads, batches, heads_first)
    if not _is_batch(found.shape[0], batches):
        raise AxesError(
            f"no axis of {host} is the batch ({' or '.join(map(str, sorted(batches))) or 'none was given'})"
        )
    return found


def _with_heads(host: tuple[int, ...], heads: int, batches: set[int], heads_first: bool | None) -> Arrangement:
    """Return which of the axes before the queries are the heads, where the module says how many it has."""
    places = [axis for axis in range(1, len(host) - 2) if host[axis] == heads]
    if len(host) == 4 and host[0] == heads > 1 and host[1] in batches:
        if not places:
            return Arrangement(host, axis=0)
        if heads_first is None:
            raise SamplesOrHeadsError(f"the first two axes of {host} may be samples and heads, or heads and samples")
        return Arrangement(host, axis=0 if heads_first else 1)
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
    has as many channels as there are tokens, shapes do not tell, and nothing is raised. ``value_dim`` is the last axis
    of what the map is multiplied with; ``between``: the logits are a product of two activations, as those of linear
    attention are not.
    """
    queries, keys = host[-2:]
    linear = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    convolved = [p.in_channels for p in module.modules() if isinstance(p, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    sizes = [axes for _, *axes in (shape for shape in inputs if len(shape) >= 3)]
    # Of every input, once with the channels last and once with them behind the batch.
    readings = [pair for axes in sizes for pair in ((math.prod(axes[:-1]), axes[-1]), (math.prod(axes[1:]), axes[0]))]
    for tokens, channels in (pair for pair in readings if pair[1] in {*linear, *convolved}):
        if not between and {queries, keys} == {tokens, channels // heads} != {tokens}:
            raise AxesError(f"its maps {host} lie between tokens and the {channels // heads} channels of a head")
        between_channels = queries == keys and heads * queries == channels and value_dim == tokens
        if between_channels and keys != tokens:
            raise AxesError(f"its maps {host} relate the {queries} channels of a head, not tokens")


def heads_of(module: nn.Module) -> int | None:
    """Return how many heads a module has: by its layout where it is known, else by its attributes, else ``None``.

    An attribute is a number, or a list with a module for each head.
    """
    described = described_attention(module)
    if described is not None:
        return described[0].query.heads
    numbers = (getattr(module, name, None) for name in HEADS)
    numbers = (len(each) if isinstance(each, nn.ModuleList) else each for each in numbers)
    return next((number for number in numbers if isinstance(number, int) and not isinstance(number, bool)), None)


def _is_batch(length: int, batches: set[int]) -> bool:
    """Say whether an axis may be the batch, or its windows; 1 is a batch packed into one sequence."""
    return length == 1 or any(batch and length % batch == 0 for batch in batches)


@dataclass
class Softmax:
    """One softmax inside attention."""

    owner: object  # whose attention it is
    logits: Tensor  # what it is taken of
    between: bool = True  # whether that comes from a product of two activations, and not of a linear map alone
    left: int = 0  # how many of its numbers are still to be multiplied with values
    products: int = 0  # how many times it was


@dataclass(frozen=True)
class SeenMap:
    """One map as the host computes it."""

    shape: tuple[int, ...]  # its shape; queries and keys are last
    compute: Compute  # (entries of axis 0) → map
    # the last axis of the values; None where the map is known to be (batch, heads, queries, keys)
    value_dim: int | None = None
    softmax: Softmax | None = None  # that it comes from, where the host writes it out


@dataclass(eq=False)
class Call:
    """One running call of a module, and the maps that were seen in it so far."""

    name: str  # the module's plain name
    module: nn.Module  # the module
    inputs: list[tuple[int, ...]]  # the shapes of what it was given
    watched: int | None = None  # how many heads watching found
    heads_first: bool | None = None  # whether maps are (H, B, N, M); None where it was not asked
    seen: list[SeenMap] = field(default_factory=list)  # the maps

    @property
    def heads(self) -> int | None:
        """How many heads its module has; ``None`` where nothing says so."""
        return heads_of(self.module) or self.watched

    def maps(self, batches: Collection[int]) -> Iterator[tuple[Compute, tuple[int, int, int, int]] | AxesError]:
        """Yield a function (samples) → maps (batch, heads, queries, keys) and the shape of all, or why not.

        ``batches`` are the lengths that a batch of the model may have.
        """
        for seen in _joined(self.seen, self.heads):
            try:
                arranged = self._arrangement(seen, batches)
            except AxesError as error:
                yield error
            else:
                yield partial(self._arranged, arranged, seen.compute), arranged.shape

    @staticmethod
    def _arranged(arranged: Arrangement, compute: Compute, samples: int) -> Tensor:
        return arranged(compute(arranged.rows(samples)))[:samples]

    def _arrangement(self, seen: SeenMap, batches: Collection[int]) -> Arrangement:
        if seen.value_dim is None:
            if len(seen.shape) != 4:
                raise AxesError(f"its maps {seen.shape} are not (batch, heads, queries, keys)")
            return Arrangement(seen.shape)
        if seen.softmax is not None and seen.softmax.products > 1 and seen.shape[-1] < seen.softmax.logits.shape[-1]:
            raise AxesError(f"its softmax {tuple(seen.softmax.logits.shape)} is multiplied with the values in pieces")
        heads = self.heads or (1 if self._adds_no_axis(seen.shape) else None)
        if heads is None and (len(seen.shape) > 4 or (len(seen.shape) == 3 and seen.shape[0] not in batches)):
            raise AxesError(f"its maps {seen.shape} do not tell its heads, nor does the module: give it num_heads")
        batches = {*batches, *(shape[0] for shape in self.inputs if shape)}
        arranged = arrangement(seen.shape, heads, batches, self.heads_first)
        between = seen.softmax is None or seen.softmax.between
        refuse_channels(seen.shape, seen.value_dim, arranged.shape[1], self.module, self.inputs, between=between)
        return arranged

    def _adds_no_axis(self, host: tuple[int, ...]) -> bool:
        """Say whether the axes before the keys are those of an input before its channels, so that none is of heads.

        Channels are what weights of the module have; a module without any may be given heads apart.
        """
        sizes = {size for weight in self.module.parameters() if weight.ndim > 1 for size in weight.shape}
        return any(len(shape) > 2 and shape[:-1] == host[:-1] and shape[-1] in sizes for shape in self.inputs)


def _joined(seen: list[SeenMap], heads: int | None) -> list[SeenMap]:
    """Return the maps of one call; those of single heads, as many as there are heads, are one map."""
    shapes = {each.shape for each in seen}
    if heads is None or heads < 2 or len(seen) != heads or len(shapes) != 1:
        return seen
    (shape,), parts = shapes, [each.compute for each in seen]
    if len(shape) == 4 and shape[1] == 1:
        joined = SeenMap((shape[0], heads, *shape[2:]), lambda rows: torch.cat([p(rows) for p in parts], 1))
    elif len(shape) == 3:
        joined = SeenMap((shape[0], heads, *shape[1:]), lambda rows: torch.stack([p(rows) for p in parts], 1))
    else:
        return seen
    return [replace(joined, value_dim=seen[0].value_dim)]
