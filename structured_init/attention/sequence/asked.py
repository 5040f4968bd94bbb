"""What is asked of which attention layer: its tower, its positions, its tokens, the offsets of its heads.

Letters: an offset is (rows above, columns to the left); in a sequence (0, tokens before).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor
from torch.utils._pytree import tree_leaves

from structured_init.attention.sequence.absolute import AbsoluteHeads
from structured_init.attention.sequence.heads import Heads, Kind, Layer, Offset, RelativeHeads
from structured_init.attention.sequence.rotary import RotaryHeads
from structured_init.attention.sequence.trial import choose_trial, draw_twice
from structured_init.hosts.attention import ATTENTION, AttentionSite, required_attention_sites, sought_attention_sites
from structured_init.hosts.attention_positions import AttentionPositions, attention_positions, positions_elsewhere
from structured_init.hosts.attention_site import is_causal
from structured_init.hosts.positions import FOUND_BY_WATCHING
from structured_init.hosts.registry import Where
from structured_init.hosts.watched import cannot_run, check_sites, same_attention, watched_attention
from structured_init.hosts.watching import FoundAttention
from structured_init.inputs import as_inputs
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import block_around
from structured_init.weights import Weights

# Through which positions heads look: of those that a host has, the first. A new kind is a field of AttentionPositions
# and a subclass of Heads that says what to write for a strength.
KINDS: dict[Kind, type[Heads]] = {"relative": RelativeHeads, "absolute": AbsoluteHeads, "rotary": RotaryHeads}
UNBOUNDED = 512  # tokens for which a host without a longest context is solved
LONGEST = 1024  # tokens for which any host is solved, unless asked otherwise
Prepared = TypeVar("Prepared")


class Asked(NamedTuple):
    """What a user asks for, as in :class:`PreviousToken`."""

    offsets: Sequence[int | Sequence[int] | None] | None
    share: float
    context: int | None
    causal: bool | None


def heads_of(layer: Layer) -> Heads:
    """Return what writes the heads of a layer through its kind of positions."""
    return KINDS[layer.kind](layer)


def find_towers(who: str, weights: Weights, where: Where) -> list[list[AttentionSite]]:
    """Return the attention layers that are selected, tower by tower.

    Raises:
        StructuredInitError: there are none, or the model cannot be run: on the meta device, or sharded.
    """
    if why := cannot_run(weights.model, asked=True):
        raise StructuredInitError(f"{who} measures its heads in a run of the network, and {why}")
    sites = sought_attention_sites(weights, where) or required_attention_sites(weights, where, who)
    check_sites(weights, sites, ATTENTION)
    found: dict[str, list[AttentionSite]] = {}
    for site in sites:
        # A tower is what stands before a layer's first number: blocks.0, or else block1.
        numbered = re.match(r"(.*?)(^|\.)\d+(\.|$)", site.name)
        tower = numbered[1] if numbered else block_around(site.name, weights.modules).rstrip("0123456789")
        found.setdefault(tower, []).append(site)
    return list(found.values())


def prepare_each(
    who: str,
    weights: Weights,
    groups: Sequence[list[AttentionSite]],
    prepare: Callable[[list[AttentionSite]], Prepared],
) -> list[Prepared]:
    """Prepare each group of layers, with nothing written yet; those that cannot are skipped, unless none can."""
    done, taken, refusals = [], [], {}
    for layers in groups:
        try:
            done.append(prepare(layers))
        except StructuredInitError as refusal:
            # What looks at offsets speaks as PreviousToken, also where it is a part of another initializer.
            refusals[layers[0].name] = str(refusal).removeprefix("PreviousToken: ").removeprefix(f"{who}: ")
        else:
            taken += [site.name for site in layers]
    if not done:
        raise StructuredInitError(f"{who}: {next(iter(refusals.values()))}")
    for name, why in refusals.items():
        weights.skip(name, why)
    weights.sought(taken, [site.name for layers in groups for site in layers])
    return done


def ask_layer(site: AttentionSite, weights: Weights, rng: Draws, asked: Asked, *, twice: bool = False) -> Layer:
    """Return what is to be done in one layer. ``twice``: texts are of random tokens that come twice."""
    seen = same_attention(site, watched_attention(weights))
    refuse_tokens_first(site, weights, seen)
    positions = attention_positions(site, weights)
    kind = choose_kind(site, positions, weights)
    known = is_causal(site) if asked.causal is None else asked.causal
    if known is None and seen is not None:
        known = seen.layout.causal
    size = choose_size(site, positions, kind, asked.context)
    looking = choose_offsets(asked.offsets, site, size, causal=bool(known))
    if not looking:
        raise StructuredInitError(f"PreviousToken: '{site.name}' sees a single token: there is nowhere to look")
    if known is None and size[0] == 1:
        site.note("taken for bidirectional; if it is causal, say causal=True")
    trial = choose_trial(weights, site, size[0] * size[1], twice=twice)
    if twice:
        trial = draw_twice(trial, rng.generator(site.name, "PreviousToken: tokens that come twice"))
    site = site.by("PreviousToken: query_key")
    return Layer(site, positions, kind, looking, bool(known), size, asked.share, weights, rng, trial)


def refuse_tokens_first(site: AttentionSite, weights: Weights, seen: FoundAttention | None) -> None:
    """Raise one line where a layer seems to attend along axis 0 of the batch: what is measured expects samples."""
    given = [leaf for leaf in tree_leaves(as_inputs(weights.batch)) if isinstance(leaf, Tensor) and leaf.ndim > 1]
    if not given or seen is None or getattr(site.module, "batch_first", True):
        return
    first, second = given[0].shape[:2]
    if first == seen.length != second:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' attends along axis 0 of the batch (batch_first=False): if tokens are there,"
            " wrap the model so that samples come first; if samples are, build it with batch_first=True"
        )


def choose_kind(site: AttentionSite, positions: AttentionPositions, weights: Weights) -> Kind:
    """Return the kind of positions through which the heads of a layer look.

    Raises:
        StructuredInitError: it has none through which any head could.
    """
    for kind in KINDS:
        if getattr(positions, kind) is not None:
            return kind
    if site.layout.rope:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' turns queries and keys, and a forward pass does not show how"
        )
    if positions.alibi is not None:
        raise StructuredInitError(f"PreviousToken: '{site.name}' has ALiBi alone, whose slopes no head can look past")
    why = positions_elsewhere(site, weights) or (
        "neither absolute, relative nor rotary ones, without which no head can tell which token stands before:"
        f" structured_init.register_positions describes a table{'' if weights.can_ask else FOUND_BY_WATCHING}"
    )
    raise StructuredInitError(f"PreviousToken: '{site.name}' has no positions that are known: {why}")


def choose_size(site: AttentionSite, positions: AttentionPositions, kind: Kind, context: int | None) -> tuple[int, int]:
    """Return rows and columns of the tokens for which a layer is solved."""
    if kind == "relative" and positions.relative.grid is not None:
        return positions.relative.grid
    grid = positions.absolute.grid if kind == "absolute" else site.grid
    if grid is not None and site.grid is None:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' sees other tokens than the grid of '{positions.absolute.name}', such as"
            " parts of it or tokens behind it, whose positions are not known: leave it out with where="
        )
    if grid is not None and grid[0] > 1:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' sees a grid of {grid[0]} rows through {kind} positions: use Impulse"
        )
    longest = None
    if kind == "absolute":
        longest = grid[1] if grid else positions.absolute.num_tokens
    elif kind == "rotary":
        longest = getattr(getattr(site.module, "config", None), "max_position_embeddings", None)
    if context is None:
        return 1, min(longest or UNBOUNDED, LONGEST)
    return 1, min(context, longest or context)


def choose_offsets(
    asked: Sequence[int | Sequence[int] | None] | None, site: AttentionSite, size: tuple[int, int], *, causal: bool
) -> dict[int, Offset]:
    """Return the heads of a layer that are written, and where each of them looks."""
    heads, (rows, columns) = site.num_heads, size
    if asked is None:
        return dict(enumerate(default_offsets(size, causal)[:heads]))
    if len(asked) > heads:
        raise StructuredInitError(f"PreviousToken: {len(asked)} offsets for the {heads} heads of '{site.name}'")
    looking = {}
    for head, offset in enumerate(asked):
        if offset is None:
            continue
        up, left = (0, offset) if isinstance(offset, int) else offset
        said = f"PreviousToken: offset {[up, left] if up else left}"
        if causal and left < 0:
            raise StructuredInitError(
                f"{said} looks ahead, but '{site.name}' is causal: use positive offsets, which count tokens back"
            )
        if abs(up) >= rows or abs(left) >= columns:
            tokens = f"{columns} tokens" if rows == 1 else f"{rows}×{columns} tokens"
            raise StructuredInitError(f"{said} lies outside of the {tokens} that '{site.name}' sees")
        looking[head] = up, left
    return looking


def default_offsets(size: tuple[int, int], causal: bool) -> list[Offset]:
    """Return 1, 2, 3, … tokens back; 1, −1, 2, −2, … where attention goes both ways; all four ways on a grid."""
    rows, columns = size
    offsets: list[Offset] = []
    for distance in range(1, max(size)):
        if distance < columns:
            offsets.append((0, distance))
        if distance < columns and not causal:
            offsets.append((0, -distance))
        if distance < rows:
            offsets += [(distance, 0), (-distance, 0)]
    return offsets
