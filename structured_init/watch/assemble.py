"""From what was watched to layouts: which block of which parameter each matrix of an attention layer is, or why none.

Letters: H heads, k head_dim, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.layout import AttentionLayout, Projection, StridedProjection
from structured_init.watch import codes
from structured_init.watch.records import MIXED, TWICE, Linear, Other, Product, Sum, Tag
from structured_init.watch.watch import SOFTMAX, WatchMode

NORMS = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm", "rsqrt"})
NORMS |= {"linalg_vector_norm", "norm"}
POOLS = frozenset({"mean", "amax", "max", "avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d"})
TURNS = frozenset({TWICE})
# What may lie between a linear map and its use without making another function of it, beside norms and pooling.
PLAIN = frozenset(
    [
        "mul",
        "div",
        "add",
        "sub",
        "neg",
        "pow",
        "mean",
        "sum",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "clamp_min",
        "expand_as",
        "var",
        "eq",
    ]
)


class NoLayout(Exception):
    """Attention that cannot be described by four matrices; the message says what it is instead."""


@dataclass(eq=False)
class Watched:
    """One attention layer as it was seen.

    Attributes:
        name: the innermost module that holds all its parameters.
        layout: where its matrices are; ``None`` where it has none that the four projections can say.
        reason: why not.
        sums: the calls.
        product: the logits of the first call.
        linears: the linear maps of queries, keys, values and output.
        columns: for every head, its channels among the outputs of the first three and the inputs of the last.
        heads: for every head of the layout, its number in product and sum.
    """

    name: str
    layout: AttentionLayout | None
    reason: str | None
    sums: list[Sum]
    linears: tuple[Linear, Linear, Linear, Linear] | None = None
    columns: tuple[Int64[Tensor, "heads head_dim"], ...] = ()
    heads: tuple[int, ...] = ()
    product: Product | None = None


def assemble(seen: WatchMode, owners: dict[int, str]) -> list[Watched]:
    """Return every attention layer of a pass, in calling order; the calls of one layer are one.

    Args:
        seen: the pass.
        owners: identity of a parameter → the plain name of the module that holds it.
    """
    found: list[Watched] = []
    for sum_ in seen.of(Sum):
        try:
            watched = _described(seen, sum_, owners)
        except NoLayout as reason:
            watched = Watched(sum_.module, None, str(reason), [sum_])
        same = next((other for other in found if _same(other, watched)), None)
        if same is None:
            found.append(watched)
        else:
            same.sums += watched.sums
    return found


def _described(seen: WatchMode, sum_: Sum, owners: dict[int, str]) -> Watched:
    product = seen.source(sum_.maps_tag)
    if not SOFTMAX & sum_.maps_tag.path:
        raise NoLayout("no softmax lies between the product of queries and keys and that with the values")
    if product.columns is None:
        turned = codes.over_tokens(product.query_tag.codes.mT)
        raise NoLayout(
            "it attends between channels, not between tokens"
            if turned is not None and len(set(turned[0].tolist())) > 1
            else "its queries are no channels of tokens"
        )
    numbers = list(range(len(product.columns)))
    if set(numbers) - sum_.first.keys():
        raise NoLayout("its heads are put together after the softmax")
    tables = {
        "queries": _resolved(product.query_tag)[product.first],
        "keys": _resolved(product.key_tag)[product.first],
        "values": _resolved(sum_.value_tag)[[sum_.first[number] for number in numbers]],
    }
    for (what, _), tag in zip(tables.items(), (product.query_tag, product.key_tag, sum_.value_tag), strict=True):
        if between := tag.path - PLAIN - NORMS - POOLS - TURNS:
            raise NoLayout(f"its {what} go through {', '.join(sorted(between))} behind their linear map")
    linears = {what: _linear(seen, what, table) for what, table in tables.items()}
    order = _order(tables["queries"], tables["keys"], tables["values"])
    tables = {what: table[order] for what, table in tables.items()}
    output, taken = _output(seen, sum_, torch.tensor(order))
    query, key = _sorted_alike(codes.place(tables["queries"]), codes.place(tables["keys"]))
    value = codes.place(tables["values"])
    maps = (*linears.values(), output)
    columns = (query, _distinct(key), _distinct(value), taken)
    if len(query) % len(columns[1]) or len(query) % len(columns[2]):
        raise NoLayout(f"{len(query)} heads of queries share {len(columns[1])} of keys and {len(columns[2])} of values")
    names = ("queries", "keys", "values")
    blocks = [_outputs(what, linear, table) for what, linear, table in zip(names, maps, columns, strict=False)]
    blocks.append(_inputs(output, taken))
    norm = bool(NORMS & product.query_tag.path)
    layout = AttentionLayout(
        *blocks,
        scale=None,
        query_key_norm=norm,
        value_norm=bool(NORMS & output.path),
        rope=bool(TURNS & product.query_tag.path),
        mixes_heads=MIXED in sum_.maps_tag.path,
        cross=_cross(seen, maps[0], maps[1]),
    )
    name = _common([owners[id(linear.block.parameter)] for linear in maps])
    return Watched(name, layout, None, [sum_], maps, columns, tuple(order), product)


def _resolved(tag: Tag) -> Int64[Tensor, "batch channels"]:
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


def _linear(seen: WatchMode, what: str, table: Int64[Tensor, "heads channels"]) -> Linear:
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


def _order(query: Tensor, key: Tensor, value: Tensor) -> list[int]:
    """Return the order of the heads in which those that share a key or a value are neighbours."""
    rank = [tuple(int(table[head].min()) for table in (key, value, query)) for head in range(len(query))]
    return sorted(range(len(query)), key=rank.__getitem__)


def _distinct(table: Int64[Tensor, "heads channels"]) -> Int64[Tensor, "groups channels"]:
    """Return each row once, in order."""
    return torch.stack([torch.tensor(row) for row in dict.fromkeys(map(tuple, table.tolist()))])


def _sorted_alike(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Put the channels of every head in order, its key's with them: a product does not ask for their order."""
    order = query.argsort(dim=1)
    return query.gather(1, order), key.gather(1, order)


def _output(seen: WatchMode, sum_: Sum, order: Tensor) -> tuple[Linear, Int64[Tensor, "heads channels"]]:
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
    for linear in taking:
        places = {
            int(codes.place(code)): place
            for place, code in enumerate(linear.taken)
            if int(codes.source(code)) == number
        }
        if all(channel in places for channel in wanted.flatten().tolist()):
            return linear, torch.tensor([[places[channel] for channel in row] for row in wanted.tolist()])
    raise NoLayout(f"'{taking[0].module}' takes only a part of what it gives")


def _outputs(what: str, linear: Linear, columns: Tensor) -> Projection | StridedProjection:
    """Return the block of a parameter that gives some of its outputs."""
    block = linear.block
    starts = block.starts.flatten()[columns.to(block.starts.device)].cpu()
    steps = starts.diff(dim=1)
    step = int(steps[0, 0]) if steps.numel() else 1
    if steps.numel() and not (steps == step).all():
        raise NoLayout(f"the channels of a head of its {what} lie in no regular order in '{linear.module}'")
    return _block(block.parameter, starts[:, 0].tolist(), columns.shape[1], block.inputs, (step, block.step))


def _inputs(linear: Linear, columns: Tensor) -> Projection | StridedProjection:
    """Return the block of a parameter that takes some of its inputs."""
    block = linear.block
    if len(block.starts) > 1:
        raise NoLayout(f"'{linear.module}' multiplies what it gives with a matrix for each head")
    starts = block.starts[0].cpu()
    step = int(starts[1] - starts[0]) if len(starts) > 1 else 1
    places = columns.diff(dim=1)
    along = int(places[0, 0]) if places.numel() else 1
    if (len(starts) > 1 and not (starts.diff() == step).all()) or (places.numel() and not (places == along).all()):
        raise NoLayout(f"what it gives goes into '{linear.module}' in no regular order")
    first = (starts[0] + columns[:, 0] * block.step).tolist()
    return _block(block.parameter, first, columns.shape[1], len(starts), (along * block.step, step))


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
            if (head_dim == 1 or steps[0] == along) and steps[1] == across and width == size and even and whole:
                return Projection(parameter, len(starts), head_dim, axis, apart[0], None if step == head_dim else step)
    return StridedProjection(parameter, tuple(starts), head_dim, width, steps)


def _cross(seen: WatchMode, query: Linear, key: Linear) -> bool:
    """Say whether keys come from other tokens than queries.

    They do not where the queries' tokens are among the keys', or where the keys' were made from those, by a
    convolution that reduces them or a smaller linear map.
    """
    asked = _rows(query.x)
    for _ in range(3):
        if key is None:
            return True
        if key.x.shape[-1] == query.x.shape[-1] and asked <= _rows(key.x):
            return False
        key = _above(seen, key)
    return True


def _above(seen: WatchMode, linear: Linear | Other) -> Linear | Other | None:
    """Return what made the input of a linear map, where one source did."""
    if linear.taken is None:
        return None
    numbers = codes.source(linear.taken).unique().tolist()
    source = seen.sources[numbers[0]] if len(numbers) == 1 else None
    return source if isinstance(source, Linear | Other) else None


def _rows(x: Tensor) -> set[tuple[float, ...]]:
    """Return the tokens as a set; a few of their numbers tell them apart."""
    return set(map(tuple, x.reshape(-1, x.shape[-1])[:, :4].tolist()))


def _common(names: list[str]) -> str:
    """Return the innermost module around all of these."""
    parts = [name.split(".") if name else [] for name in names]
    shared = []
    for here in zip(*parts, strict=False):
        if len(set(here)) > 1:
            break
        shared.append(here[0])
    return ".".join(shared)


def _same(one: Watched, two: Watched) -> bool:
    if one.layout is None or two.layout is None:
        return one.name == two.name and one.reason == two.reason
    pairs = zip(one.linears, two.linears, strict=True)
    return all(a.block.parameter is b.block.parameter for a, b in pairs) and all(
        torch.equal(a, b) for a, b in zip(one.columns, two.columns, strict=True)
    )
