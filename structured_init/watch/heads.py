"""Which channels of which linear maps the queries, keys and values of every head are, and where they go."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.watch import codes
from structured_init.watch.found import NoLayout
from structured_init.watch.records import Linear, Other, Sum, Tag
from structured_init.watch.watch import WatchMode


def resolved(tag: Tag) -> Int64[Tensor, "batch channels"]:
    """Return the codes without token of each column; where a rotation left one channel twice, of its partner too."""
    columns = codes.over_tokens(tag.codes)
    if columns is None:
        raise NoLayout("its keys or values are no channels of tokens")
    if tag.other is None:
        return columns
    others = codes.over_tokens(tag.other)
    if others is None:
        return columns
    resolved = columns.clone()
    for row, other in zip(resolved, others, strict=True):
        seen: set[int] = set()
        for place, (one, two) in enumerate(zip(row.tolist(), other.tolist(), strict=True)):
            row[place] = two if one in seen else one
            seen.add(int(row[place]))
    return resolved


def made_by(seen: WatchMode, what: str, table: Int64[Tensor, "heads channels"]) -> Linear:
    """Return the linear map whose outputs the channels are."""
    sources = [seen.sources[number] for number in codes.source(table).unique().tolist()]
    if len(sources) > 1:
        parts = ", ".join(getattr(source, "module", "") or "a parameter" for source in sources if source is not None)
        raise NoLayout(f"its {what} are put together from several linear maps ({parts})")
    source = sources[0]
    if isinstance(source, Linear):
        return source
    if isinstance(source, Other):
        raise NoLayout(f"its {what} are made by {source.what} ('{source.module}')")
    if isinstance(source, nn.Parameter):
        raise NoLayout(f"its {what} are a parameter")
    raise NoLayout(f"its {what} come from something that could not be followed to a linear map")


def in_groups(query: Tensor, key: Tensor, value: Tensor) -> list[int]:
    """Return the order of the heads in which those that share a key or a value are neighbours."""
    rank = [tuple(int(table[head].min()) for table in (key, value, query)) for head in range(len(query))]
    return sorted(range(len(query)), key=rank.__getitem__)


def distinct(table: Int64[Tensor, "heads channels"]) -> Int64[Tensor, "groups channels"]:
    """Return each row once, in order."""
    return torch.stack([torch.tensor(row) for row in dict.fromkeys(map(tuple, table.tolist()))])


def sorted_alike(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Put the channels of every head in order, its key's with them: a product does not ask for their order.

    Returns:
        Both, and the order of each head, all (H, k).
    """
    order = query.argsort(dim=1)
    return query.gather(1, order), key.gather(1, order), order


def taken_by(seen: WatchMode, sum_: Sum, order: Tensor) -> tuple[Linear, Int64[Tensor, "heads channels"]]:
    """Return the linear map that takes what attention gives, and which of its inputs each head's channels are."""
    number, width = seen.number(sum_), sum_.width
    wanted = order[:, None] * width + torch.arange(width)
    taking = [
        linear
        for linear in seen.of(Linear)
        if linear.taken is not None and (codes.source(linear.taken) == number).any()
    ]
    if not taking:
        takers = (other for other in seen.of(Other) if other.below is sum_)
        raise NoLayout(
            next(
                (f"what it gives goes into {t.what} ('{t.module}')" for t in takers),
                "no linear map takes what it gives",
            )
        )
    if len({id(linear.block.parameter) for linear in taking}) > 1:
        names = ", ".join(dict.fromkeys(f"'{linear.module}'" for linear in taking))
        raise NoLayout(f"what it gives goes into several linear maps ({names})")
    for linear in taking:
        own = linear.taken[codes.source(linear.taken) == number]
        if len(own.unique()) < len(own):
            raise NoLayout(f"what it gives goes into '{linear.module}' more than once")
        places = {
            int(codes.place(code)): place
            for place, code in enumerate(linear.taken)
            if int(codes.source(code)) == number
        }
        if all(channel in places for channel in wanted.flatten().tolist()):
            return linear, torch.tensor([[places[channel] for channel in row] for row in wanted.tolist()])
    raise NoLayout(f"'{taking[0].module}' takes only a part of what it gives")
