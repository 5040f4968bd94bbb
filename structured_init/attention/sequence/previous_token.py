"""PreviousToken: heads of the first layer look at the token before, or at other offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from structured_init.arguments import check_finite, check_flag, check_positive, check_whole
from structured_init.attention.sequence.copying import write_copies
from structured_init.attention.sequence.job import Job, Kind, Outcome
from structured_init.attention.sequence.measured import measured_shares, told, warn_of
from structured_init.attention.sequence.offsets import check_kind, chosen_offsets
from structured_init.attention.sequence.towers import those_that_can, towers
from structured_init.attention.sequence.write import through_absolute, through_alibi, through_relative, through_rotary
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.causal import is_causal
from structured_init.sites.position_kinds import AttentionPositions, attention_positions
from structured_init.sites.select import Where

KINDS: tuple[Kind, ...] = ("relative", "absolute", "rotary", "alibi")  # of several, the first
UNBOUNDED = 512  # tokens for which a host without a longest context is solved
LONGEST = 4096  # tokens for which any host is solved, unless asked otherwise


class PreviousToken(Initializer):
    """Heads of the first layer that look at the token before them, and at others of a given distance.

    Trained language models have such heads, and their appearance is a step in training. They are written through
    whatever positions the host has:

    - **absolute** (GPT-2, OPT, BERT): positions are written, codes of many frequencies; W_k (D, k) of a head reads k/2
      of them and W_q the same, turned by the offset;
    - **relative-bias tables** (T5, BEiT, Swin): the entry of the offset is raised;
    - **rotary** with biases (Qwen2, GPT-NeoX, Phi): constant queries and keys whose product peaks at the offset;
      without biases (Llama): the same, read from a direction that is added to all token embeddings;
    - **ALiBi** (BLOOM, MPT): a token is kept from looking at itself, which leaves offset 1, as far as the slope goes.

    The strength is the least for which the share of attention on the offset is reached at the end of the longest
    context, for content that is random. The report says what heads have in the whole network, measured in a forward
    pass, and what was predicted where that is another; it warns of heads with less than half of what was asked for.

    Args:
        offsets: where the first heads look, in tokens before; negative for tokens behind, ``[rows, columns]`` up and
            left on a grid, ``null`` for a head that is left to the host, as are all heads without one. ``None``: 1, 2,
            3, … over all heads; 1, −1, 2, −2, … where attention goes both ways; left, right, up, down, … on a grid; of
            ALiBi's heads that with the steepest slope.
        share: of attention that a head puts on its offset, between 0 and 1.
        values: ``"host"`` leaves values and outputs alone; ``"copy"`` writes what is seen into a subspace of each
            head's own: W_v = V, W_o = copy_scale · rms · Oᵀ, V and O with orthonormal columns.
        copy_scale: size of the copy in its subspace over the root mean square rms of the stream.
        gain: absolute positions: their root mean square over that of what they are added to; ``None``: the least of
            1, 1.25, 1.5, 2, 2.5, 3 and 4 that suffices.
        context: tokens for which it is solved; ``None``: the host's longest context, at most 4,096, or 512 where it
            has none. Codes are written for all positions of the host.
        causal: whether tokens are kept from seeing those behind; ``None``: as a forward pass on the batch shows, or
            else as the layout or the host's module says; of a host of which nothing says, no, with a note.
        where: which attention layers, by name; ``None``: the first of every tower.

    Raises:
        StructuredInitError: at :meth:`plan`, no known attention layer or nothing but cross-attention; a host whose
            first layer cannot tell tokens apart (NoPE), or only on a grid of absolute positions; more offsets than
            heads; an offset of 0, outside of the context, or ahead under a causal mask.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2Model
        >>> from structured_init import PreviousToken, initialize
        >>> _ = torch.manual_seed(0)
        >>> model = GPT2Model(GPT2Config(vocab_size=64, n_positions=64, n_embd=64, n_layer=1, n_head=4))
        >>> report = initialize(model, PreviousToken(offsets=[1, 2, None, None]), seed=0)
        >>> print(report.notes["h.0.attn"].partition(" (")[0])
        attention on offsets at the end of 64 tokens, measured: 1: 0.90, 2: 0.87

    Source: ours; constructions and measurements in ``docs/previous_token.md``.
    """

    def __init__(
        self,
        offsets: list[int | list[int] | None] | None = None,
        share: float = 0.9,
        values: Literal["host", "copy"] = "host",
        copy_scale: float = 1.0,
        gain: float | None = None,
        context: int | None = None,
        causal: bool | None = None,
        where: Where = None,
    ) -> None:
        check_kind(offsets)
        check_finite("PreviousToken", share=share)
        check_positive("PreviousToken", copy_scale=copy_scale)
        check_positive("PreviousToken", null=True, gain=gain)
        check_whole("PreviousToken", least=2, null=True, context=context)
        check_flag("PreviousToken", null=True, causal=causal)
        if not 0 < share < 1:
            raise StructuredInitError(f"PreviousToken: share must lie between 0 and 1, got {share}")
        if values not in ("host", "copy"):
            raise StructuredInitError(f"PreviousToken: values must be host or copy, got '{values}'")
        self.offsets = offsets
        self.share = share
        self.values: Literal["host", "copy"] = values
        self.copy_scale = copy_scale
        self.gain = gain
        self.context = context
        self.causal = causal
        self.where = where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        gains: dict[str, float | None] = {}  # of the positions written so far: layers that share them share their gain
        done: dict[int, list[tuple[Job, Outcome]]] = {}  # by the context
        for job in weights.each(self._jobs(weights, rng)):
            name = job.positions.absolute.name if job.positions.absolute is not None else ""
            outcome, gains[name] = look(job, gains.get(name, self.gain))
            done.setdefault(job.length, []).append((job, outcome))
            if self.values == "copy":
                write_copies(job, self.copy_scale, outcome)
        for layers in done.values():
            for (job, outcome), measured in zip(layers, measured_shares([job for job, _ in layers]), strict=True):
                job.site.note(told(job, outcome, measured))
                warn_of(job, outcome, measured)

    def _jobs(self, weights: Weights, rng: Draws) -> list[Job]:
        """Return what is to be done, with nothing written yet."""
        found = towers("PreviousToken", weights, self.where)
        written = (tower if self.where is not None else tower[:1] for tower in found)
        groups = [[site] for tower in written for site in tower]
        settings = {"offsets": self.offsets, "share": self.share, "context": self.context, "causal": self.causal}

        def job(layers: list[AttentionSite]) -> Job:
            return prepare(layers[0], weights, rng, **settings)

        return those_that_can("PreviousToken", weights, groups, job, every=self.where is not None)


def prepare(
    site: AttentionSite,
    weights: Weights,
    rng: Draws,
    *,
    offsets: list | None,
    share: float,
    context: int | None,
    causal: bool | None,
) -> Job:
    """Return what is to be done in one layer; the arguments are those of :class:`PreviousToken`.

    Raises:
        StructuredInitError: it cannot be done.
    """
    positions = attention_positions(site, weights)
    kind = next((kind for kind in KINDS if kind in positions.kinds), None)
    if kind is None:
        raise StructuredInitError(_why_not(site))
    known = is_causal(site, alibi=kind == "alibi") if causal is None else causal
    size = _size(site, positions, kind, context)
    asked = _of_alibi(offsets, site, positions) if kind == "alibi" else offsets
    chosen = chosen_offsets(asked, site.name, site.num_heads, size=size, causal=bool(known))
    if not any(chosen):
        raise StructuredInitError(f"PreviousToken: '{site.name}' sees a single token: there is nowhere to look")
    if known is None and size[0] == 1:
        site.note("taken for bidirectional; if it is causal, say causal=True")
    return Job(site.by("PreviousToken: query_key"), positions, kind, chosen, bool(known), size, share, weights, rng)


def look(job: Job, gain: float | None, spare: Sequence[int] = ()) -> tuple[Outcome, float | None]:
    """Write one layer, and return what was reached and the gain of absolute positions, those written before or not.

    Args:
        job: the layer.
        gain: of absolute positions; ``None`` for the least that suffices.
        spare: how many coordinates absolute positions are to leave to content, the first number that they can.
    """
    if job.kind == "absolute":
        return through_absolute(job, gain, spare)
    return {"relative": through_relative, "rotary": through_rotary, "alibi": through_alibi}[job.kind](job), gain


def _size(site: AttentionSite, positions: AttentionPositions, kind: Kind, context: int | None) -> tuple[int, int]:
    """Return rows and columns of the tokens for which a layer is solved."""
    relative, absolute = positions.relative, positions.absolute
    if kind == "relative" and relative is not None and relative.grid is not None:
        return relative.grid
    if kind == "absolute" and absolute is not None:
        rows, columns = absolute.grid or (1, absolute.num_tokens)
        longest: int | None = columns
    else:
        rows, _ = site.grid or (1, 0)
        config = getattr(site.module, "config", None)
        longest = None if kind != "rotary" else getattr(config, "max_position_embeddings", None)
    if rows > 1:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' sees a grid of {rows} rows through {kind} positions: use Impulse"
        )
    if context is not None:
        return 1, context if longest is None else min(context, longest)
    return 1, min(longest or UNBOUNDED, LONGEST)


def _of_alibi(asked: list | None, site: AttentionSite, positions: AttentionPositions) -> list:
    """Return the offsets of a layer with ALiBi, of which there is one: 1."""
    if asked is None:
        assert positions.alibi is not None
        steepest = int(positions.alibi.slopes.argmax())
        return [None] * steepest + [1]
    if any(offset not in (1, None) for offset in asked):
        raise StructuredInitError(
            f"PreviousToken: ALiBi decays with distance, so heads of '{site.name}' can look at offset 1 alone"
        )
    return asked


def _why_not(site: AttentionSite) -> str:
    if site.layout.rope:
        return f"PreviousToken: '{site.name}' turns queries and keys by frequencies that are not known"
    return (
        f"PreviousToken: '{site.name}' has no positions that are known, absolute, relative, rotary or ALiBi: without"
        " them no head can tell which token stands before: describe them with structured_init.register_positions, or,"
        " if it has none, this method cannot be used"
    )
