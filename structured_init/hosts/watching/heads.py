"""Which channels of which linear maps the queries, keys and values of every head are, and where they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.hosts.layout import Projection, StridedProjection
from structured_init.hosts.watching import origins
from structured_init.hosts.watching.forward_pass import WatchMode
from structured_init.hosts.watching.records import Linear, Other, Product, Sum, Tag


class NoLayout(Exception):
    """Attention that cannot be described by four matrices; the message says what it is instead."""


def content(seen: WatchMode, product: Product, sum_: Sum) -> tuple[Product, float]:
    """Return the product of queries and keys among those that were added up, and the factor on it.

    Positions may have one of their own (Transformer-XL): its keys are made of something else than the values.
    """
    if not product.beside:
        return product, product.factor
    every = [(product, product.factor), *((o, o.factor * product.factor / at) for o, at in product.beside)]
    of_tokens = [pair for pair in every if _same_input(seen.source(pair[0].key.tag), seen.source(sum_.value.tag))]
    if not of_tokens or not torch.equal(of_tokens[0][0].heads, product.heads):
        raise NoLayout("its logits are a sum of products, and none is of keys and values of the same tokens")
    return of_tokens[0]


def _same_input(one: object, two: object) -> bool:
    """Say whether two linear maps are given the same tokens."""
    return isinstance(one, Linear) and isinstance(two, Linear) and torch.equal(one.x, two.x)


def resolved(seen: WatchMode, tag: Tag) -> Int64[Tensor, "batch channels"]:
    """Return the codes without token of each column; where a rotation left one channel twice, of its partner too."""
    tag = Tag(_of_first_calls(seen, tag.codes), None if tag.other is None else _of_first_calls(seen, tag.other))
    columns = origins.over_tokens(tag.codes, tag.other)
    if columns is None:
        raise NoLayout("its keys or values are no channels of tokens")
    others = None if tag.other is None else origins.over_tokens(tag.other)
    if others is None:
        return columns
    rows = columns.tolist()
    for row, other in zip(rows, others.tolist(), strict=True):
        taken: set[int] = set()
        for place, two in enumerate(other):
            if row[place] in taken:
                row[place] = two
            taken.add(row[place])
    return torch.tensor(rows, device=columns.device)


def _of_first_calls(seen: WatchMode, codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Return codes in which several calls of one linear map count as its first: tokens put beside each other."""
    few = origins.compact(codes)
    first = torch.tensor(seen.alike).to(few.device)[origins.source(few)]
    return origins.pack(first, origins.place(few)).expand(codes.shape)


def map_that_makes(seen: WatchMode, what: str, table: Int64[Tensor, "heads channels"], tag: Tag) -> Linear:
    """Return the linear map whose outputs the channels are; of several calls of it, one with the tokens of all."""
    sources = [seen.sources[number] for number in origins.source(table).unique().tolist()]
    if len(sources) > 1:
        parts = ", ".join(getattr(source, "module", "") or "a parameter" for source in sources)
        raise NoLayout(f"its {what} are put together from several linear maps ({parts})")
    source = sources[0]
    if isinstance(source, Linear):
        calls = origins.source(origins.compact(tag.codes)).unique().tolist()
        same = tuple(call for call in calls if seen.alike[call] == seen.alike[seen.number(source)])
        if same not in seen.together:
            seen.together[same] = all_calls([seen.sources[call] for call in same])
        return seen.together[same]
    if isinstance(source, Other):
        raise NoLayout(f"its {what} are made by {source.what} ('{source.module}')")
    raise NoLayout(f"its {what} come from something that could not be followed to a linear map")


def all_calls(calls: list[Linear]) -> Linear:
    """Return several calls of one linear map as one."""
    if len(calls) == 1 or len(calls[0].block.starts) > 1:
        return calls[0]
    x, y = (torch.cat([getattr(call, name).flatten(0, -2) for call in calls]) for name in ("x", "y"))
    return replace(calls[0], x=x, y=y)


def in_groups(query: Tensor, key: Tensor, value: Tensor) -> list[int]:
    """Return the order of the heads in which those that share a key or a value are neighbours."""
    return sorted(range(len(query)), key=lambda head: [int(table[head].min()) for table in (key, value, query)])


def distinct(table: Int64[Tensor, "heads channels"]) -> Int64[Tensor, "groups channels"]:
    """Return each row once, in order."""
    return torch.stack([torch.tensor(row) for row in dict.fromkeys(map(tuple, table.tolist()))])


def sorted_alike(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Put the channels of every head in order, its key's with them; return both and the order, all (H, k).

    A product does not ask for it.
    """
    order = query.argsort(dim=1)
    return query.gather(1, order), key.gather(1, order), order


def map_that_takes(seen: WatchMode, sum_: Sum, order: Tensor) -> tuple[Linear, Int64[Tensor, "heads channels"]]:
    """Return the linear map that takes what attention gives, and which of its inputs each head's channels are."""
    number, width = seen.number(sum_), sum_.width
    wanted = order[:, None] * width + torch.arange(width)
    linears = (linear for linear in seen.of(Linear) if linear.taken is not None)
    taking = [linear for linear in linears if (origins.source(linear.taken) == number).any()]
    if not taking:
        raise NoLayout(sum_.parted or "no linear map takes what it gives")
    if len({id(linear.block.parameter) for linear in taking}) > 1:
        names = ", ".join(dict.fromkeys(f"'{linear.module}'" for linear in taking))
        raise NoLayout(f"what it gives goes into several linear maps ({names})")
    for linear in taking:
        inputs = (origins.source(linear.taken) == number).nonzero().flatten()
        places = dict(zip(origins.place(linear.taken[inputs]).tolist(), inputs.tolist(), strict=True))
        if len(places) < len(inputs):
            raise NoLayout(f"what it gives goes into '{linear.module}' more than once")
        if all(channel in places for channel in wanted.flatten().tolist()):
            return linear, torch.tensor([[places[channel] for channel in row] for row in wanted.tolist()])
    raise NoLayout(f"'{taking[0].module}' takes only a part of what it gives")


# Whose tokens an attention layer looks at.


def is_cross(seen: WatchMode, query: Linear, key: Linear) -> bool:
    """Say whether keys come from other tokens than queries.

    They do not where the tokens of one are among those of the other, or where the keys' were made from those, by a
    convolution that reduces them or a smaller linear map.
    """
    keys = _line(seen, key)
    if any(_holds(one.x, query.x) for one in keys) or _holds(query.x, key.x):
        return False
    for first in _line(seen, query)[1:]:
        if isinstance(first, Linear) and any(one is not first and _holds(one.x, first.x) for one in keys):
            raise NoLayout(
                f"its queries are made by two linear maps, one after the other ('{first.module}', '{query.module}')"
            )
    return True


def _line(seen: WatchMode, linear: Linear) -> list[Linear | Other]:
    """Return a linear map, what made its input, and what made the input of that."""
    line: list[Linear | Other] = [linear]
    while len(line) < 3 and line[-1].taken is not None:
        numbers = origins.source(line[-1].taken).unique().tolist()
        source = seen.sources[numbers[0]] if len(numbers) == 1 else None
        if not isinstance(source, Linear | Other):
            break
        line.append(source)
    return line


def _holds(tokens: Tensor, some: Tensor) -> bool:
    """Say whether some tokens are among others of the same width; a few of their numbers tell them apart."""
    few, all_ = (set(map(tuple, x.reshape(-1, x.shape[-1])[:, :4].tolist())) for x in (some, tokens))
    return tokens.shape[-1] == some.shape[-1] and few <= all_


# From channels of a linear map to the block of its parameter that makes or takes them.


def outputs(what: str, linear: Linear, columns: Tensor) -> Projection | StridedProjection:
    """Return the block of a parameter that gives some of its outputs."""
    block = linear.block
    starts = block.starts.flatten()[columns.to(block.starts.device)].cpu()
    step, across = _step(starts), _step(block.offsets[None])
    if step is None:
        raise NoLayout(f"the channels of a head of its {what} lie in no regular order in '{linear.module}'")
    if across is None:
        raise NoLayout(f"the inputs of '{linear.module}' lie in no regular order in its parameter")
    if min(step, across) < 0:
        raise NoLayout(f"the channels of its {what} lie backwards in '{linear.module}', those that they meet do not")
    return _block(block.parameter, starts[:, 0].tolist(), columns.shape[1], block.inputs, (step, across))


def inputs(linear: Linear, columns: Tensor) -> Projection | StridedProjection:
    """Return the block of a parameter that takes some of its inputs."""
    block = linear.block
    if len(block.starts) > 1:
        raise NoLayout(f"'{linear.module}' multiplies what it gives with a matrix for each head")
    entries = block.starts[0, 0].cpu() + block.offsets.cpu()[columns]
    along, step = _step(entries), _step(block.starts)
    if along is None or step is None:
        raise NoLayout(f"what it gives goes into '{linear.module}' in no regular order")
    if min(step, along) < 0:
        raise NoLayout(f"what it gives goes into '{linear.module}' backwards")
    return _block(block.parameter, entries[:, 0].tolist(), columns.shape[1], block.starts.shape[1], (along, step))


def _step(entries: Int64[Tensor, "rows entries"]) -> int | None:
    """Return how far apart neighbours lie, 1 where there are none; ``None`` where they lie differently far apart."""
    steps = entries.diff(dim=1).unique().tolist()
    return None if len(steps) > 1 else (*steps, 1)[0]


def _block(
    parameter: nn.Parameter, starts: Sequence[int], head_dim: int, width: int, steps: tuple[int, int]
) -> Projection | StridedProjection:
    """Return rows or columns of a matrix where a block is that, and strides where not."""
    if parameter.ndim == 2:
        rows, columns = parameter.shape
        for axis, size, along, across in ((0, columns, columns, 1), (1, rows, 1, columns)):
            apart = [start // along for start in starts]
            step = apart[1] - apart[0] if len(apart) > 1 else head_dim
            even = all(two - one == step for one, two in pairwise(apart)) and step >= head_dim
            whole = all(start % along == 0 for start in starts) and (axis == 0 or max(starts) < columns)
            if steps == (along, across) and width == size and even and whole:
                return Projection(parameter, len(starts), head_dim, axis, apart[0], None if step == head_dim else step)
    return StridedProjection(parameter, tuple(starts), head_dim, width, steps)
