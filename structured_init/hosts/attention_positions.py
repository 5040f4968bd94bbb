"""By which positions an attention layer can tell its tokens apart: those added to tokens, and those in its logits.

Letters: H heads, k head_dim, r turned pairs, R rows of a table of biases, N tokens of a grid (Gy, Gx) or a sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from structured_init.hosts.attention import AttentionSite, attention_sites
from structured_init.hosts.layout import pieces
from structured_init.hosts.positions import (
    PositionSite,
    enclosing,
    found_by_watching,
    known_tokens,
    position_sites,
    token_layouts,
)
from structured_init.hosts.watched import same_attention, watched_attention
from structured_init.inputs import pair
from structured_init.weights import Weights


@dataclass(frozen=True)
class AttentionPositions:
    """The positions of one attention layer, by kind; a host mostly has one.

    A new kind is a class, a field, and a function that finds it in :func:`attention_positions`; heads look through it
    where it is named in ``KINDS`` and has a subclass of ``Heads`` (``sequence/asked.py``).

    Attributes:
        absolute: positions added to its tokens, learned or sinusoidal.
        relative: a table of biases.
        rotary: turned queries and keys.
    """

    absolute: PositionSite | None = None
    relative: RelativeBias | None = None
    rotary: Rotary | None = None


def attention_positions(site: AttentionSite, weights: Weights) -> AttentionPositions:
    """Return the positions of an attention layer; nothing in it where the host has none (NoPE) or none that is known.

    ``weights`` is the overlay that the site was found in.
    """
    table = _table_around(site, weights)
    # Of a window, the model's own positions are not known to be the tokens'.
    known = table is not None and site.layout.tokens is None and not not_of(table, site, weights)
    turned = rotary(site, weights) if site.layout.rope else None
    return AttentionPositions(table if known else None, relative_bias(site, weights), turned)


def _table_around(site: AttentionSite, weights: Weights) -> PositionSite | None:
    """Return the table of the innermost module around a layer of which tokens are known; ``None`` where it has none."""
    around = enclosing(token_layouts(weights), site.name)
    tables = {id(each.tensor): each for each in position_sites(weights)}
    return None if around is None else tables.get(id(around.positions))


def not_of(table: PositionSite, site: AttentionSite, weights: Weights) -> str:
    """Say why a table cannot be that of the tokens that a layer was seen to attend to; "" where it can.

    One of another width reaches them through a map, or turns heads (RoFormer). One that gives its rows to several
    tokens each cannot tell these apart: the places within each step of a series are such a table, and so are steps of
    which each is several tokens.
    """
    if table.embed_dim != site.embed_dim:
        return (
            f"'{table.name}' of width {table.embed_dim} reaches its tokens of width {site.embed_dim} through"
            " another layer, and only positions as wide as the tokens can be written"
        )
    seen = same_attention(site, weights.seen.layers)
    added = next((each for each in weights.seen.added if each.parameter is table.tensor), None)
    if seen is None or added is None:
        return ""
    part = added.all_samples * seen.queries == seen.rows  # of the tokens, once for all of them
    if seen.length - site.prefix_tokens >= 2 * added.given and not part:
        return (
            f"'{table.name}' gives {added.given} rows to the {seen.length} tokens that '{site.name}' sees, so it cannot"
            " tell those of one row apart: add rotary positions, or a table with a row for every token; if there is one"
            " already, a batch without padding shows it"
        )
    tokens = added.prefix + added.tokens + added.after
    if seen.length >= tokens or seen.rows >= tokens * added.samples:  # or windows
        return ""
    return (
        f"'{table.name}' is added to {tokens} tokens, and the {seen.length} that '{site.name}' sees are others, or a "
        "part of them: where tokens are left out, have the model keep them all"
    )


def positions_elsewhere(site: AttentionSite, weights: Weights) -> str:
    """Say why tables that are known are not those of a layer, and the way out; "" where there are none."""
    table = _table_around(site, weights)
    if table is not None and (why := not_of(table, site, weights)):
        return why
    if why_unknown := known_tokens(weights).why_unknown:
        return why_unknown
    places = (_table_around(each, weights) for each in attention_sites(weights, cross=True))
    held = {each.name for each in places if each is not None}
    tables = ", ".join(f"'{each.name}'" for each in position_sites(weights) if each.name not in held)
    return tables and (
        f"which layers the positions of {tables} are for was not seen: register the class around them and the attention"
        f"{found_by_watching(weights)}"
    )


# Rotary positions: queries and keys turned, pair of coordinates by pair, by an angle that grows with the position.


@dataclass(frozen=True)
class Rotary:
    """How the heads of one attention layer are turned: the pair (a, b) of token t by the angle frequency · t.

    Attributes:
        frequencies: of each pair, in radians per token (r,).
        pairs: the two coordinates of each pair within a head (r, 2); those of no pair are not turned.
    """

    frequencies: Float64[Tensor, " r"]
    pairs: Int[Tensor, "r 2"]


def rotary(site: AttentionSite, weights: Weights) -> Rotary | None:
    """Return how a forward pass shows that a layer is turned: its queries before and after say it; else ``None``."""
    found = same_attention(site, watched_attention(weights))
    if found is None or found.turns is None:
        return None
    places = [pieces(layout.query)[0].entries[0, :, 0].tolist() for layout in (found.layout, site.layout)]
    own = torch.tensor([places[1].index(place) for place in places[0]])  # channels as the site counts them
    return Rotary(found.turns.frequencies, own[found.turns.pairs])


# Relative positions that are added to the logits: a table with an entry for every offset and head.
# An offset (y, x) leads from a query to the key y rows above and x columns to the left of it; in a sequence y is 0 and
# x counts the tokens before it.

# Tables are told by the names that hosts give them: a pass shows the entries between its own tokens alone, and which
# entry stands for an offset of a longer text only the host's own function says.

SHARED = ("rel_pos_bias", "shared_position_bias", "relative_position_bias", "rel_pos")  # beside or above the attention


@dataclass(frozen=True)
class RelativeBias:
    """The bias table of one attention layer.

    Attributes:
        table: the host's parameter (R, H).
        rows: the row of each offset: (n, 2) → (n,). Offsets that the tokens do not have are the caller's mistake.
        grid: (Gy, Gx) of the window or image, or ``None`` for a sequence of any length.
        shared: whether other layers read the same table.
    """

    table: Tensor
    rows: Callable[[Int[Tensor, "offsets 2"]], Int[Tensor, " offsets"]]
    grid: tuple[int, int] | None = None
    shared: bool = False

    def get(self, weights: Weights) -> Float[Tensor, "rows heads"]:
        """The table as planned so far, as a copy."""
        return weights.read(self.table).clone()

    def set(self, weights: Weights, head: int, offset: tuple[int, int], value: float, by: str) -> None:
        """Write one head's entry for one offset."""
        weights.edit(self.table, by)[self.rows(torch.tensor([offset]))[0], head] = value


def relative_bias(site: AttentionSite, weights: Weights) -> RelativeBias | None:
    """Find the table whose entries an attention layer adds to its logits, by what it is, not by its class.

    Either an ``nn.Embedding`` called ``relative_attention_bias`` with a function from offsets to buckets (T5 and its
    kin), or a parameter ``relative_position_bias_table`` (R, H) with an index from pairs of tokens (Swin, BEiT): in the
    module itself, in a child of it or of the block, or of a module further out, where all layers share it.
    """
    for name, module in _around(site.name, weights.modules):
        outside = site.name != name and site.name.rpartition(".")[0] != name
        found = _buckets(module) or _indexed(module, shared=outside)
        if found is not None and found.table.shape[1] == site.num_heads:
            return found
    return None


def _around(name: str, modules: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The module, its children, and what stands beside it or beside a module around it under a known name."""
    yield name, modules[name]
    yield from ((name, child) for _, child in modules[name].named_children())
    while name:
        name = name.rpartition(".")[0]
        yield from ((name, child) for key, child in modules[name].named_children() if key in SHARED)


def _buckets(module: nn.Module) -> RelativeBias | None:
    """T5: near offsets have a bucket each, far ones share some; the first layer's table serves all layers."""
    table, bucket = getattr(module, "relative_attention_bias", None), getattr(module, "_relative_position_bucket", None)
    if not isinstance(table, nn.Embedding) or bucket is None:
        return None
    settings = {
        "bidirectional": not module.is_decoder,
        "num_buckets": module.relative_attention_num_buckets,
        "max_distance": module.relative_attention_max_distance,
    }
    shared = "bidirectional" in inspect.signature(bucket).parameters
    settings = settings if shared else {}
    return RelativeBias(table.weight, lambda offsets: bucket(-offsets[:, 1], **settings), shared=shared)


def _indexed(module: nn.Module, *, shared: bool) -> RelativeBias | None:
    """Swin and BEiT: ``relative_position_index`` (N, N) names a row for each pair of tokens."""
    table, grid = getattr(module, "relative_position_bias_table", None), pair(getattr(module, "window_size", None))
    index, computed = (getattr(module, f"{of}relative_position_index", None) for of in ("", "generate_"))
    if not isinstance(table, Tensor) or grid is None or (index is None and computed is None):
        return None
    index = computed(grid) if index is None else index
    size = round(index.numel() ** 0.5)
    prefix = size - grid[0] * grid[1]

    def rows(offsets: Tensor) -> Tensor:
        query, key = offsets.clamp(min=0), (-offsets).clamp(min=0)
        flat = (prefix + place[:, 0] * grid[1] + place[:, 1] for place in (query, key))
        return index.detach().cpu().view(size, size)[tuple(flat)]

    return RelativeBias(table, rows, grid, shared)
