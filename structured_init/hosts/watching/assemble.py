"""From what was watched to layouts: which block of which parameter each matrix of an attention layer is, or why none.

Letters: H heads, k head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from structured_init.hosts.layout import AttentionLayout
from structured_init.hosts.watching import origins
from structured_init.hosts.watching.forward_pass import WatchMode
from structured_init.hosts.watching.heads import (
    NoLayout,
    content,
    distinct,
    in_groups,
    inputs,
    is_cross,
    map_that_makes,
    map_that_takes,
    outputs,
    resolved,
    sorted_alike,
)
from structured_init.hosts.watching.operations import LINEAR, NORMING, POOLING, SOFTMAX
from structured_init.hosts.watching.records import (
    AVERAGED,
    MIXED,
    NEGATED,
    POOLED,
    TWICE,
    Added,
    Linear,
    MapAt,
    Product,
    Sum,
    agreed,
)
from structured_init.util.names import outwards, within

NORMS = NORMING | {AVERAGED}
POOLS = frozenset({POOLED})
TURNS = frozenset({TWICE})
PLAIN = LINEAR | POOLING  # may lie between a linear map and its use without making another function of it
# What may be done to logits and maps between the two products: factors, masks, biases, a cap, dropout, mixing.
ON_LOGITS = (
    SOFTMAX | PLAIN | {"masked_fill", "where", "tanh", "clamp", "clamp_min", "clamp_max", "maximum", "nan_to_num"}
)
ON_LOGITS |= {"linalg_vector_norm", "norm", "var", MIXED, AVERAGED, POOLED}
ON_LOGITS -= {"neg"}
NO_SOFTMAX = "no softmax lies between the product of queries and keys and that with the values"
CHANNELS = "it attends between channels, not between tokens"
OVER_QUERIES = "its softmax is taken over queries and not over keys"
PLACES = "its queries and keys change places between their product and the values"


@dataclass(eq=False)
class Call:
    """One call of attention, whose heads are made of channels of linear maps: queries, keys, values and output."""

    sum: Sum
    product: Product
    factor: float  # what the product was multiplied with before the softmax
    linears: tuple[Linear, Linear, Linear, Linear]
    columns: tuple[Tensor, Tensor, Tensor, Tensor]  # of every head, its outputs of the maps, inputs of the last; (H, k)
    channels: Tensor  # of every head, the order of its channels in the product, (H, k)

    @property
    def curved(self) -> frozenset[str]:
        """The functions of single numbers that the values go through."""
        return self.sum.value.tag.path - PLAIN - NORMS - POOLS - TURNS


@dataclass(eq=False)
class Watched:
    """One attention layer as it was seen."""

    name: str  # the innermost module that holds all its parameters; without a layout, the module that was running
    layout: AttentionLayout | None
    reason: str | None  # why the four projections cannot say it
    calls: int  # how often it ran
    parts: list[Call]  # those that the layout is of: several where heads are multiplied one at a time
    columns: tuple[Tensor, ...] = ()  # as in ``Call``; keys and values that are shared stand once
    order: list[int] = field(default_factory=list)  # for every head of the layout, its place among those of the calls
    maps: tuple[tuple[MapAt, ...], ...] = ()  # of every call, where its maps are computed
    tables: tuple[Added, ...] = ()  # those that gave rows to the tokens that ask


def assemble(seen: WatchMode, owners: dict[int, str]) -> list[Watched]:
    """Return every attention layer of a pass, in calling order; the calls of one layer are one."""
    layers: dict[object, list[Call]] = {}
    places: dict[object, list[MapAt]] = {}
    tables: dict[object, tuple[Added, ...]] = {}
    for sum_ in seen.of(Sum):
        try:
            call = _call(seen, sum_)
        except NoLayout as why:
            key = (sum_.module, str(why))
            layers.setdefault(key, [])
        else:
            blocks = (linear.block for linear in call.linears)
            key = tuple((id(b.parameter), int(b.starts[0, 0])) for b in blocks)
            layers.setdefault(key, []).append(call)
        tables.setdefault(key, sum_.tables)
        told = seen.source(sum_.maps.tag).columns is not None
        places.setdefault(key, []).append(MapAt(sum_.product, sum_.is_left, tuple(sum_.heads.tolist()) if told else ()))
    found = []
    for key, calls in layers.items():
        if not calls:
            maps = tuple((each,) for each in places[key])
            found.append(Watched(key[0], None, key[1], len(maps), [], maps=maps, tables=tables[key]))
            continue
        parts = [call for call in calls if list(map(id, call.linears)) == list(map(id, calls[0].linears))]
        name = common([owners[id(linear.block.parameter)] for linear in parts[0].linears])
        maps = tuple(tuple(places[key][begin : begin + len(parts)]) for begin in range(0, len(calls), len(parts)))
        try:
            layout, columns, order = _layout(seen, parts)
            causal = None if layout.cross else agreed(call.sum.causal for call in calls)
            layout = replace(layout, causal=causal)
            found.append(Watched(name, layout, None, len(maps), parts, columns, order, maps, tables[key]))
        except NoLayout as why:
            found.append(Watched(name, None, str(why), len(maps), [], maps=maps, tables=tables[key]))
    return found


def _call(seen: WatchMode, sum_: Sum) -> Call:
    """Follow the heads of one call to their linear maps."""
    first = seen.source(sum_.maps.tag)
    if not SOFTMAX & sum_.maps.tag.path:
        raise NoLayout(NO_SOFTMAX)
    product, factor = content(seen, first, sum_)
    if product.columns is None:
        turned = origins.over_tokens(product.query.tag.codes.mT)
        channels = turned is not None and len(set(turned[0].tolist())) > 1
        raise NoLayout(CHANNELS if channels else "its queries are put together from several sources")
    if between := sum_.maps.tag.path - ON_LOGITS:
        raise NoLayout(f"its logits or maps go through {', '.join(sorted(between))}")
    if first.softened > 1:
        raise NoLayout("its softmax is taken more than once")
    if first.over_queries != sum_.turned:
        raise NoLayout(OVER_QUERIES)
    if sum_.turned:
        raise NoLayout(PLACES)
    if first.apart:
        raise NoLayout("some of its logits are multiplied with negative numbers")
    numbers = list(range(len(product.columns)))
    if set(numbers) - sum_.first.keys():
        raise NoLayout("its heads are put together after the softmax")
    tags = {"queries": product.query.tag, "keys": product.key.tag, "values": sum_.value.tag}
    entries = (product.first, product.first, [sum_.first[number] for number in numbers])
    tables = {what: resolved(seen, tag)[entry] for (what, tag), entry in zip(tags.items(), entries, strict=True)}
    for what, tag in tags.items():
        if "linear_dynamic" in tag.path:
            raise NoLayout("its weights are quantized: initialize the model before it is quantized")
        free = seen.pointwise if what == "values" else frozenset()
        if between := tag.path - PLAIN - NORMS - POOLS - TURNS - free:
            raise NoLayout(f"its {what} go through {', '.join(sorted(between))} behind their linear map")
    linears = [map_that_makes(seen, what, table, tags[what]) for what, table in tables.items()]
    output, taken = map_that_takes(seen, sum_, torch.tensor(numbers))
    if NEGATED in output.path:
        raise NoLayout(f"what its heads give, or some of them, is taken times −1 in front of '{output.module}'")
    query, key, value = (origins.place(table) for table in tables.values())
    query, key, order = sorted_alike(query, key)
    return Call(sum_, product, factor, (*linears, output), (query, key, value, taken), order)


def _layout(seen: WatchMode, calls: list[Call]) -> tuple[AttentionLayout, tuple[Tensor, ...], list[int]]:
    """Return the layout of the calls that make up a layer, the channels and the order of its heads."""
    first = calls[0]
    if any(len({table.shape[1] for table in tables}) > 1 for tables in zip(*(c.columns for c in calls), strict=True)):
        raise NoLayout("its heads are of different sizes")
    if len({call.product.logits.shape[1:] for call in calls}) > 1:
        raise NoLayout("its heads are of different numbers of tokens")
    query, key, value, taken = (torch.cat(tables) for tables in zip(*(call.columns for call in calls), strict=True))
    order = in_groups(query, key, value)
    query, key, value, taken = query[order], distinct(key[order]), distinct(value[order]), taken[order]
    if len(query) % len(key) or len(query) % len(value):
        raise NoLayout(f"{len(query)} heads of queries share {len(key)} of keys and {len(value)} of values")
    makers = zip(("queries", "keys", "values"), first.linears, (query, key, value), strict=False)
    path = first.product.query.tag.path
    products = seen.source(first.sum.maps.tag).others
    sources = [seen.source(tag) for each in products for tag in (each.query.tag, each.key.tag)]
    layout = AttentionLayout(
        *(outputs(what, linear, table) for what, linear, table in makers),
        inputs(first.linears[3], taken),
        query_key_norm=bool(NORMS & path),
        value_norm=bool(NORMS & (first.linears[3].path | first.sum.value.tag.path)),
        between=", ".join(sorted((first.linears[3].path | first.curved) - PLAIN - NORMS - POOLS)) or None,
        rope=bool(TURNS & path),
        mixes_heads=MIXED in first.sum.maps.tag.path,
        others=", ".join(dict.fromkeys(f"'{getattr(source, 'module', '')}'" for source in sources)) or None,
        cross=is_cross(seen, first.linears[0], first.linears[1]),
    )
    return layout, (query, key, value, taken), order


def common(names: list[str]) -> str:
    """Return the innermost module around all of these."""
    return next(around for around in outwards(names[0]) if all(within(name, around) for name in names))
