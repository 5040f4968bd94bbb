"""Which channels of which linear maps the queries, keys and values of every head are, and where they go."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.watch import codes
from structured_init.watch.found import NoLayout
from structured_init.watch.records import Linear, Other, Product, Sum, Tag
from structured_init.watch.watch import WatchMode


def content(seen: WatchMode, product: Product, sum_: Sum) -> tuple[Product, float]:
    """Return the product of queries and keys among those that were added up, and the factor on it.

    Positions may have one of their own (Transformer-XL): its keys are made of something else than the values.
    """
    if not product.beside:
        return product, product.factor
    tokens = _input(seen, sum_.value_tag)
    every = [(product, product.factor), *((o, o.factor * product.factor / at) for o, at in product.beside)]
    of_tokens = [pair for pair in every if _alike(_input(seen, pair[0].key_tag), tokens)]
    if not of_tokens or not torch.equal(of_tokens[0][0].heads, product.heads):
        raise NoLayout("its logits are a sum of products, and none is of keys and values of the same tokens")
    return of_tokens[0]


def _input(seen: WatchMode, tag: Tag) -> Tensor | None:
    """Return the tokens that a tag's linear map is given."""
    source = seen.source(tag)
    return source.x if isinstance(source, Linear) else None


def _alike(one: Tensor | None, two: Tensor | None) -> bool:
    return one is not None and two is not None and one.shape == two.shape and torch.equal(one, two)


def _as_first(seen: WatchMode, tag: Tag) -> Tag:
    """Return a tag in which several calls of one linear map are its first: tokens that were put beside each other."""
    alike = torch.tensor(seen.alike)

    def first(each: Tensor) -> Tensor:
        few = codes.compact(each)
        numbers = codes.source(few)
        first = alike.to(few.device)[numbers]
        return each if (first == numbers).all() else codes.pack(first, codes.place(few)).expand(each.shape)

    return Tag(first(tag.codes), None if tag.other is None else first(tag.other), tag.path)


def resolved(seen: WatchMode, tag: Tag) -> Int64[Tensor, "batch channels"]:
    """Return the codes without token of each column; where a rotation left one channel twice, of its partner too."""
    tag = _as_first(seen, tag)
    columns = codes.over_tokens(tag.codes)
    if columns is None:
        raise NoLayout("its keys or values are no channels of tokens")
    if tag.other is None:
        return columns
    others = codes.over_tokens(tag.other)
    if others is None:
        return columns
    resolved = columns.tolist()
    for row, other in zip(resolved, others.tolist(), strict=True):
        seen: set[int] = set()
        for place, two in enumerate(other):
            row[place] = two if row[place] in seen else row[place]
            seen.add(row[place])
    return torch.tensor(resolved, device=columns.device)


def made_by(seen: WatchMode, what: str, table: Int64[Tensor, "heads channels"], tag: Tag) -> Linear:
    """Return the linear map whose outputs the channels are; of several calls of it, one with the tokens of all."""
    sources = [seen.sources[number] for number in codes.source(table).unique().tolist()]
    if len(sources) > 1:
        parts = ", ".join(getattr(source, "module", "") or "a parameter" for source in sources if source is not None)
        raise NoLayout(f"its {what} are put together from several linear maps ({parts})")
    source = sources[0]
    if isinstance(source, Linear):
        numbers = codes.source(codes.compact(tag.codes))
        calls = [int(numbers.max())] if numbers.min() == numbers.max() else numbers.unique().tolist()
        same = tuple(call for call in calls if seen.alike[call] == seen.alike[seen.number(source)])
        if same not in seen.together:
            seen.together[same] = together([seen.sources[call] for call in same])
        return seen.together[same]
    if isinstance(source, Other):
        raise NoLayout(f"its {what} are made by {source.what} ('{source.module}')")
    if isinstance(source, nn.Parameter):
        raise NoLayout(f"its {what} are a parameter")
    raise NoLayout(f"its {what} come from something that could not be followed to a linear map")


def together(calls: list[Linear]) -> Linear:
    """Return several calls of one linear map as one."""
    if len(calls) == 1 or calls[0].x.ndim != calls[0].y.ndim or len(calls[0].block.starts) > 1:
        return calls[0]
    x, y = (torch.cat([getattr(call, name).flatten(0, -2) for call in calls]) for name in ("x", "y"))
    return replace(calls[0], x=x, y=y)


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
                sum_.parted or "no linear map takes what it gives",
            )
        )
    if len({id(linear.block.parameter) for linear in taking}) > 1:
        names = ", ".join(dict.fromkeys(f"'{linear.module}'" for linear in taking))
        raise NoLayout(f"what it gives goes into several linear maps ({names})")
    for linear in taking:
        own = linear.taken[codes.source(linear.taken) == number]
        if len(own.unique()) < len(own):
            raise NoLayout(f"what it gives goes into '{linear.module}' more than once")
        inputs = (codes.source(linear.taken) == number).nonzero().flatten()
        places = dict(zip(codes.place(linear.taken[inputs]).tolist(), inputs.tolist(), strict=True))
        if all(channel in places for channel in wanted.flatten().tolist()):
            return linear, torch.tensor([[places[channel] for channel in row] for row in wanted.tolist()])
    raise NoLayout(f"'{taking[0].module}' takes only a part of what it gives")
