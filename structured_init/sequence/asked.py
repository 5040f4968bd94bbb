"""What is asked of which attention layer: its tower, its positions, its tokens, the offsets of its heads.

Letters: an offset is (rows above, columns to the left); in a sequence (0, tokens before).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor
from torch.utils._pytree import tree_leaves

from structured_init.hosts.attention import ATTENTION, AttentionSite, required_attention_sites, sought_attention_sites
from structured_init.hosts.attention_positions import AttentionPositions, positions_elsewhere
from structured_init.hosts.positions import found_by_watching
from structured_init.hosts.registry import Where
from structured_init.hosts.watched import cannot_run, check_sites
from structured_init.hosts.watching import FoundAttention
from structured_init.inputs import as_inputs
from structured_init.sequence.absolute import AbsoluteHeads
from structured_init.sequence.heads import Heads, RelativeHeads
from structured_init.sequence.layer import Layer, Offset
from structured_init.sequence.rotary import RotaryHeads
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

# Through which positions heads look: of those that a host has, the first. A new kind is a field of AttentionPositions
# and a subclass of Heads that says what to write for a strength.
KINDS: dict[str, type[Heads]] = {"relative": RelativeHeads, "absolute": AbsoluteHeads, "rotary": RotaryHeads}
UNBOUNDED = 512  # tokens for which a host without a longest context is solved
LONGEST = 1024  # tokens for which any host is solved, unless asked otherwise
Prepared = TypeVar("Prepared")


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
        numbered = re.match(r"(.*?)(^|\.)\d+(\.|$)", site.name) or re.match(r"(\D*)", site.name)
        tower = numbered[1]
        found.setdefault(tower, []).append(site)
    return list(found.values())


def prepare_each(
    who: str,
    weights: Weights,
    groups: Sequence[list[AttentionSite]],
    prepare: Callable[[list[AttentionSite]], Prepared],
) -> list[Prepared]:
    """Prepare each group of layers, with nothing written yet; those that cannot are skipped with the reason.

    Raises:
        StructuredInitError: none can: the reason of the first.
    """
    done, refusals = [], []
    for layers in groups:
        names = [site.name for site in layers]
        weights.sought([], names)
        try:
            done.append(prepare(layers))
            weights.sought(names, [])
        except StructuredInitError as refusal:
            refusals.append(str(refusal))
            weights.skip(names[0], refusals[-1])
    if not done:
        raise StructuredInitError(f"{who}: {refusals[0]}")
    return done


def refuse_tokens_first(site: AttentionSite, weights: Weights, seen: FoundAttention | None) -> None:
    """Raise one line where a layer seems to attend along axis 0 of the batch: what is measured expects samples."""
    given = [leaf for leaf in tree_leaves(as_inputs(weights.batch)) if isinstance(leaf, Tensor) and leaf.ndim > 1]
    if seen is None or not given or getattr(site.module, "batch_first", True):
        return
    first, second = given[0].shape[:2]
    if seen.length == first != second:
        raise StructuredInitError(
            f"'{site.name}' attends along axis 0 of the batch (batch_first=False): if tokens are there,"
            " wrap the model so that samples come first; if samples are, build it with batch_first=True"
        )


def choose_kind(site: AttentionSite, positions: AttentionPositions, weights: Weights) -> str:
    """Return the kind of positions through which the heads of a layer look.

    Raises:
        StructuredInitError: it has none through which any head could.
    """
    for kind in KINDS:
        if getattr(positions, kind) is not None:
            return kind
    if site.layout.rope:
        raise StructuredInitError(f"'{site.name}' turns queries and keys, and a forward pass does not show how")
    why = positions_elsewhere(site, weights) or (
        "neither absolute, relative nor rotary ones, without which no head can tell which token stands before,"
        " and ALiBi is none of these: structured_init.register_positions describes a table"
        f"{found_by_watching(weights)}"
    )
    raise StructuredInitError(f"'{site.name}' has no positions that are known: {why}")


def choose_size(site: AttentionSite, positions: AttentionPositions, kind: str, context: int | None) -> tuple[int, int]:
    """Return rows and columns of the tokens for which a layer is solved.

    Raises:
        StructuredInitError: these are a grid, whose rows no head can tell apart.
    """
    if kind == "relative" and positions.relative.grid is not None:
        return positions.relative.grid
    if kind == "absolute":
        rows, longest = positions.absolute.grid or (1, positions.absolute.num_tokens)
    else:
        config = getattr(site.module, "config", None)
        rows, longest = site.grid or (1, getattr(config, "max_position_embeddings", None))
    if rows > 1:
        raise StructuredInitError(f"'{site.name}' sees a grid of {rows} rows through {kind} positions: use Impulse")
    return 1, min(longest or context or UNBOUNDED, context or LONGEST)


def choose_offsets(
    asked: Sequence[int | Sequence[int] | None] | None, site: AttentionSite, size: tuple[int, int], *, causal: bool
) -> dict[int, Offset]:
    """Return the heads of a layer that are written, and where each of them looks.

    Raises:
        StructuredInitError: there are more offsets than heads, or one at which no token is, or none that is seen.
    """
    heads, (rows, columns) = site.num_heads, size
    if max(size) == 1:
        raise StructuredInitError(f"'{site.name}' sees a single token: there is nowhere to look")
    if asked is None:
        return dict(enumerate(default_offsets(size, causal)[:heads]))
    if len(asked) > heads:
        raise StructuredInitError(f"{len(asked)} offsets for the {heads} heads of '{site.name}'")
    looking = {}
    for head, offset in enumerate(asked):
        if offset is None:
            continue
        up, left = (0, offset) if isinstance(offset, int) else offset
        if causal and left < 0:
            raise StructuredInitError(
                f"offset {offset} looks ahead, but '{site.name}' is causal: use positive offsets, which count tokens"
                " back"
            )
        if abs(up) >= rows or abs(left) >= columns:
            tokens = f"{columns} tokens" if rows == 1 else f"{rows}×{columns} tokens"
            raise StructuredInitError(f"offset {offset} lies outside of the {tokens} that '{site.name}' sees")
        looking[head] = up, left
    return looking


def default_offsets(size: tuple[int, int], causal: bool) -> list[Offset]:
    """Return 1, 2, 3, … tokens back; 1, −1, 2, −2, … where attention goes both ways; all four ways on a grid."""
    rows, columns = size
    ways = [(0, 1)] if causal else [(0, 1), (0, -1), (1, 0), (-1, 0)]
    offsets = []
    for distance in range(1, max(size)):
        for up, left in ways:
            if abs(up) * distance < rows and abs(left) * distance < columns:
                offsets.append((up * distance, left * distance))
    return offsets
