"""PreviousToken: heads of the first layer look at the token before, or at other offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor
from torch.utils._pytree import tree_leaves

from structured_init.attention.sequence.absolute import AbsoluteHeads
from structured_init.attention.sequence.biases import AlibiHeads, RelativeHeads
from structured_init.attention.sequence.heads import Heads, Kind, Layer, Offset, report_offsets
from structured_init.attention.sequence.recorded import choose_trial, draw_twice
from structured_init.attention.sequence.rotary import RotaryHeads
from structured_init.hosts.attention import ATTENTION, AttentionSite, required_attention_sites, sought_attention_sites
from structured_init.hosts.attention_positions import AttentionPositions, attention_positions, positions_elsewhere
from structured_init.hosts.attention_site import is_causal
from structured_init.hosts.positions import FOUND_BY_WATCHING
from structured_init.hosts.registry import Where
from structured_init.hosts.watched import cannot_run, check_sites, same_attention, watched_attention
from structured_init.hosts.watching import FoundAttention
from structured_init.initializer import Initializer
from structured_init.inputs import as_inputs
from structured_init.util.arguments import check_finite, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import block_around
from structured_init.weights import Weights

# Through which positions heads look: of those that a host has, the first. A new kind is a field of AttentionPositions
# and a subclass of Heads that says what to write for a strength; ``write_heads`` makes it.
KINDS: tuple[Kind, ...] = ("relative", "absolute", "rotary", "alibi")
UNBOUNDED = 512  # tokens for which a host without a longest context is solved
LONGEST = 1024  # tokens for which any host is solved, unless asked otherwise
Asked = int | Sequence[int] | None
Prepared = TypeVar("Prepared")


@dataclass(eq=False, repr=False)
class PreviousToken(Initializer):
    """Heads of the first layer that look at the token before them, and at others of a given distance.

    They are written through whatever positions the host has: codes are written as **absolute** positions (GPT-2, OPT,
    BERT); entries of **relative** tables are raised (T5, BEiT, Swin); under **rotary** ones queries and keys get
    constant parts, as biases (Qwen2, GPT-NeoX) or read from a direction that is added to all token embeddings that are
    not zero (Llama); under **ALiBi** (BLOOM, MPT) a token is kept from looking at itself, which leaves offset 1.

    The network is run up to the layer, whose call is then repeated: each head gets the least strength that puts the
    share of attention on its offset, on average over the second half of the tokens. The report says what each head has,
    on the batch or on random tokens, and warns of heads with less than half of what was asked for.

    Args:
        offsets: where the first heads look, in tokens before; negative for tokens after, ``[rows, columns]`` up and
            left on a grid, ``null`` for a head that is left to the host, as are all heads without one, but for the key
            that they may share with one that is written. ``None``: 1, 2, 3, … over all heads; 1, −1, 2, −2, … where
            attention goes both ways; left, right, up, down, … on a grid; of ALiBi's heads that with the steepest slope.
        share: of attention that a head puts on its offset, between 0 and 1.
        context: tokens of the texts on which heads are searched; ``None``: the host's longest context, at most 1,024,
            or 512 where it has none. A batch with as many or more is taken as it is.
        causal: whether tokens are kept from seeing those after them; ``None``: as a forward pass on the batch shows, or
            else as the layout or the host's module says; of a host of which nothing says, no, with a note.
        where: which attention layers, by shell pattern; ``None``: the first of every tower. Absolute positions that
            several of them read are written for the first.

    Raises:
        StructuredInitError: at :meth:`plan`, no known attention layer or nothing but cross-attention; a host whose
            first layer cannot tell tokens apart (NoPE), or only on a grid of absolute positions; more offsets than
            heads; an offset of 0, outside of the context, or ahead under a causal mask; a model that cannot be run.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2Model
        >>> from structured_init import PreviousToken, initialize
        >>> _ = torch.manual_seed(0)
        >>> model = GPT2Model(GPT2Config(vocab_size=64, n_positions=64, n_embd=64, n_layer=1, n_head=4))
        >>> report = initialize(model, PreviousToken(offsets=[None, 1, None, None]), seed=0)
        >>> print(report.notes["h.0.attn"].partition(" (")[0])
        attention on offsets at the end of 64 tokens, measured: head 1 looks 1 token back: 0.90

    Source: ours; constructions and measurements in ``docs/previous_token.md``.
    """

    offsets: list[int | list[int] | None] | None = None
    share: float = 0.9
    context: int | None = None
    causal: bool | None = None
    where: Where = None

    samples_to_watch = 4  # on few tokens a share is known to a tenth

    def __post_init__(self) -> None:
        if self.offsets is not None and self.offsets.count(None) == len(self.offsets):
            raise StructuredInitError(
                "PreviousToken: every offset is null, so no head is written: give one, such as [1]"
            )
        for offset in self.offsets or ():
            parts = offset if isinstance(offset, list | tuple) else [offset]
            for part in parts:
                check_whole("PreviousToken", None, null=True, offsets=part)
            if 0 in parts and not any(parts):
                raise StructuredInitError(
                    "PreviousToken: offset 0 is the token itself, not an earlier one: use null to leave a head as it is"
                )
        check_finite("PreviousToken", share=self.share)
        check_whole("PreviousToken", least=2, null=True, context=self.context)
        if not 0 < self.share < 1:
            raise StructuredInitError(f"PreviousToken: share must lie between 0 and 1, got {self.share}")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        refuse_what_cannot_run("PreviousToken", weights)
        named = self.where is not None
        groups = []
        for tower in find_towers("PreviousToken", weights, self.where):
            groups += [[site] for site in (tower if named else tower[:1])]

        def prepare(sites: list[AttentionSite]) -> Layer:
            return ask_layer(sites[0], weights, rng, self)

        layers = prepare_each("PreviousToken", weights, groups, prepare, every=named)
        written: set[str] = set()  # tables of positions, as the first layer that reads them needs
        for layer in weights.each(layers):
            heads = heads_of(layer, [], written)
            heads.search()
            report_offsets(heads)


def heads_of(layer: Layer, spare: Sequence[int], written: set[str]) -> Heads:
    """Return what writes the heads of a layer through its kind of positions.

    Args:
        layer: what is asked for.
        spare: how many coordinates absolute positions leave to content: the first number for which there is room.
        written: tables that stay as they were written for a layer before; that of this layer is added.
    """
    if layer.kind == "absolute":
        return AbsoluteHeads(layer, spare, written)
    kinds = {"relative": RelativeHeads, "rotary": RotaryHeads, "alibi": AlibiHeads}
    return kinds[layer.kind](layer)


def refuse_what_cannot_run(who: str, weights: Weights) -> None:
    """Raise one line where a model cannot be run: on the meta device, or sharded."""
    if why := cannot_run(weights.model, asked=True):
        raise StructuredInitError(f"{who} measures its heads in a run of the network, and {why}")


def ask_layer(site: AttentionSite, weights: Weights, rng: Draws, asked: PreviousToken, *, twice: bool = False) -> Layer:
    """Return what is to be done in one layer. ``twice``: texts are of random tokens that come twice."""
    seen = same_attention(site, watched_attention(weights))
    refuse_tokens_first(site, weights, seen)
    positions = attention_positions(site, weights)
    kind = next((kind for kind in KINDS if kind in positions.kinds), None)
    if kind is None and site.layout.rope:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' turns queries and keys, and a forward pass does not show how"
        )
    if kind is None:
        why = positions_elsewhere(site, weights) or (
            "neither absolute, relative, rotary nor ALiBi, without which no head can tell which token stands before:"
            f" structured_init.register_positions describes a table{'' if weights.can_ask else FOUND_BY_WATCHING}"
        )
        raise StructuredInitError(f"PreviousToken: '{site.name}' has no positions that are known: {why}")
    known = is_causal(site, alibi=kind == "alibi") if asked.causal is None else asked.causal
    if known is None and seen is not None:
        known = seen.layout.causal
    size = _size(site, positions, kind, asked.context)
    offsets = asked.offsets
    if kind == "alibi" and offsets is None:
        offsets = [None] * int(positions.alibi.slopes.argmax()) + [1]  # the steepest
    chosen = chosen_offsets(offsets, site, size, causal=bool(known))
    if not any(chosen):
        raise StructuredInitError(f"PreviousToken: '{site.name}' sees a single token: there is nowhere to look")
    if known is None and size[0] == 1:
        site.note("taken for bidirectional; if it is causal, say causal=True")
    trial = choose_trial(weights, site, size[0] * size[1], twice=twice)
    if twice:
        trial = draw_twice(trial, rng.generator(site.name, "PreviousToken: tokens that come twice"))
    site = site.by("PreviousToken: query_key")
    return Layer(site, positions, kind, chosen, bool(known), size, asked.share, weights, rng, trial)


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


def _size(site: AttentionSite, positions: AttentionPositions, kind: Kind, context: int | None) -> tuple[int, int]:
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


def chosen_offsets(
    asked: Sequence[Asked] | None, site: AttentionSite, size: tuple[int, int], *, causal: bool
) -> list[Offset | None]:
    """Return the offset of every head of a layer, ``None`` for those that are left to the host."""
    heads, (rows, columns) = site.num_heads, size
    if asked is None:
        offsets = default_offsets(size, causal)[:heads]
        return offsets + [None] * (heads - len(offsets))
    if len(asked) > heads:
        raise StructuredInitError(f"PreviousToken: {len(asked)} offsets for the {heads} heads of '{site.name}'")
    offsets = [None if each is None else _pair(each) for each in asked]
    for offset in filter(None, offsets):
        said = f"PreviousToken: offset {list(offset) if offset[0] else offset[1]}"
        if causal and offset[1] < 0:
            raise StructuredInitError(
                f"{said} looks ahead, but '{site.name}' is causal: use positive offsets, which count tokens back"
            )
        if abs(offset[0]) >= rows or abs(offset[1]) >= columns:
            tokens = f"{columns} tokens" if rows == 1 else f"{rows}×{columns} tokens"
            raise StructuredInitError(f"{said} lies outside of the {tokens} that '{site.name}' sees")
    return offsets + [None] * (heads - len(offsets))


def default_offsets(size: tuple[int, int], causal: bool) -> list[Offset | None]:
    """Return 1, 2, 3, … tokens back; 1, −1, 2, −2, … where attention goes both ways; all four ways on a grid."""
    rows, columns = size
    offsets: list[Offset | None] = []
    for distance in range(1, max(size)):
        if distance < columns:
            offsets.append((0, distance))
        if distance < columns and not causal:
            offsets.append((0, -distance))
        if distance < rows:
            offsets += [(distance, 0), (-distance, 0)]
    return offsets


def _pair(offset: int | Sequence[int]) -> Offset:
    return (0, offset) if isinstance(offset, int) else (offset[0], offset[1])


def find_towers(who: str, weights: Weights, where: Where) -> list[list[AttentionSite]]:
    """Return the attention layers that are selected, tower by tower."""
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
    *,
    every: bool = False,
) -> list[Prepared]:
    """Prepare each group of layers, with nothing written yet; those that cannot are skipped, unless none can.

    With ``every``, where the user has named the layers, any that cannot is refused.
    """
    done, taken, refusals = [], [], {}
    for layers in groups:
        try:
            done.append(prepare(layers))
        except StructuredInitError as refusal:
            # What looks at offsets speaks as PreviousToken, also where it is a part of another initializer.
            refusals[layers[0].name] = str(refusal).removeprefix("PreviousToken: ").removeprefix(f"{who}: ")
        else:
            taken += [site.name for site in layers]
    if refusals and (every or not done):
        raise StructuredInitError(f"{who}: {next(iter(refusals.values()))}")
    for name, why in refusals.items():
        weights.skip(name, why)
    weights.sought(taken, [site.name for layers in groups for site in layers])
    return done
