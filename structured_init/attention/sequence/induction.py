"""Induction: a previous-token head, and a head of the next layer that continues what was seen before."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from structured_init.arguments import check_finite, check_flag, check_positive, check_whole
from structured_init.attention.sequence.copying import write_copies
from structured_init.attention.sequence.job import Job, Outcome
from structured_init.attention.sequence.matching import Copied, matching_coordinates, share_of_matches
from structured_init.attention.sequence.measured import measured_shares, told
from structured_init.attention.sequence.previous_token import look, prepare
from structured_init.attention.sequence.share import Reached, least_strength
from structured_init.attention.sequence.towers import those_that_can, towers
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.causal import is_causal
from structured_init.sites.position_kinds import attention_positions
from structured_init.sites.select import Where

WORTH = 0.25  # a share of attention on what is matched, well above that of any other token
SHORTEST = 16  # tokens


class Induction(Initializer):
    """The circuit that continues a sequence as it went on before: … A B … A → B.

    Heads of the first layer look at the token before (:class:`PreviousToken`) and copy what it holds into a subspace of
    their own: W_v = V (D, k), W_o = s Oᵀ. Heads of the second layer hold the present token against those copies,
    W_q = m V and W_k = m O, so that each token looks at those that followed its equals, and pass what they hold on:
    W_v = U, W_o = s Uᵀ, which an output tied to the embeddings reads as a prediction.

    Args:
        circuits: how many of them, each with a head in either layer and subspaces of its own.
        share: of attention, between 0 and 1, that a first head puts on the token before, and a second one in a random
            sequence that comes twice on what followed; the least strength that gives it is taken.
        copy_scale: s over the root mean square of the stream.
        gain: as in ``PreviousToken``; small, so that copies hold tokens rather than positions.
        context: as in ``PreviousToken``.
        causal: as in ``PreviousToken``.
        where: which attention layers, by name: the first two of every tower among them are used.

    Raises:
        StructuredInitError: at :meth:`plan`, a host with fewer than two layers of attention, or one that looks both
            ways; more circuits than heads; and as in ``PreviousToken``.

    Example:
        >>> report = initialize(model, Induction(), seed=0)
        >>> report.notes["h.1.attn"]
        'attention on what followed an equal token: head 1: 0.42 at 64 tokens, predicted from …'

    Source: ours; constructions and measurements in ``docs/previous_token.md``; the circuit is Olsson et al. 2022's.
    """

    def __init__(
        self,
        circuits: int = 1,
        share: float = 0.9,
        copy_scale: float = 1.5,
        gain: float | None = 1.0,
        context: int | None = None,
        causal: bool | None = None,
        where: Where = None,
    ) -> None:
        check_whole("Induction", circuits=circuits)
        check_finite("Induction", share=share)
        check_positive("Induction", copy_scale=copy_scale)
        check_positive("Induction", null=True, gain=gain)
        check_whole("Induction", least=4, null=True, context=context)
        check_flag("Induction", null=True, causal=causal)
        if not 0 < share < 1:
            raise StructuredInitError(f"Induction: share must lie between 0 and 1, got {share}")
        self.circuits = circuits
        self.share = share
        self.copy_scale = copy_scale
        self.gain = gain
        self.context = context
        self.causal = causal
        self.where = where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for first, second in weights.each(self._pairs(weights, rng)):
            outcome, _ = look(first, self.gain)
            read, write = write_copies(first, self.copy_scale, outcome.stream)
            self._match(second, first, outcome, read, write)
            first.site.note(told(first, outcome, *measured_shares([first])))

    def _pairs(self, weights: Weights, rng: Draws) -> list[tuple[Job, Job]]:
        """Return the first two layers of every tower, with nothing written yet."""
        chosen = [tower[:2] for tower in towers("Induction", weights, self.where)]
        return those_that_can("Induction", weights, chosen, lambda layers: self._pair(layers, weights, rng))

    def _pair(self, layers: list[AttentionSite], weights: Weights, rng: Draws) -> tuple[Job, Job]:
        site = layers[0]
        if len(layers) < 2:
            raise StructuredInitError(
                f"Induction: '{site.name}' is the only attention layer of its stack: an induction circuit takes two"
            )
        keys = min(layer.num_key_value_heads for layer in layers[:2])
        if self.circuits > keys:
            raise StructuredInitError(f"Induction: {self.circuits} circuits for the {keys} keys of '{site.name}'")
        group = site.num_heads // site.num_key_value_heads
        offsets = [None if head % group else 1 for head in range(self.circuits * group)]
        settings = {"share": self.share, "context": self.context, "causal": self.causal}
        first = prepare(site, weights, rng, offsets=offsets, **settings)
        if not first.causal:
            if self.causal is None and is_causal(site) is None:
                raise StructuredInitError(
                    f"Induction: it is unknown whether '{site.name}' is causal, as it must be: give a batch, or pass"
                    " causal=True if it is"
                )
            raise StructuredInitError(
                f"Induction: '{site.name}' is not causal, so it predicts no next token: use PreviousToken"
            )
        return first, self._second(layers[1], first)

    def _second(self, site: AttentionSite, first: Job) -> Job:
        """The layer that matches, in its last heads: the first ones may share a table with those of the first layer."""
        positions, group = attention_positions(site, first.weights), site.num_heads // site.num_key_value_heads
        table = first.positions.relative
        if table is not None and table.shared and 2 * self.circuits > site.num_heads:
            raise StructuredInitError(
                f"Induction: the {site.num_heads} heads of '{site.name}' share their table with the layer before, which"
                f" leaves too few for {self.circuits} circuits"
            )
        chosen = {site.num_heads - 1 - circuit * group for circuit in range(self.circuits)}
        offsets = [(0, 1) if head in chosen else None for head in range(site.num_heads)]
        site = site.by("Induction: match and pass on")
        return replace(first, site=site, positions=positions, offsets=offsets)

    def _match(
        self, second: Job, first: Job, outcome: Outcome, read: dict[int, Tensor], write: dict[int, Tensor]
    ) -> None:
        """Write the heads that match: one for each that copies."""
        site, reached = second.site, []
        query, key, value, output = (part.double() for part in (site.query, site.key, site.value, site.output))
        for (head, number, _), (copying, source, _) in zip(second.heads, first.heads, strict=True):
            size = self.copy_scale * outcome.reached[copying].share
            copied = Copied(read[source], write[copying], size, outcome.content)
            found, coordinates, length = self._strength(second, head, copied)
            reached.append(f"head {head}: {found.share:.2f} at {length:,} tokens")
            amplitude = math.sqrt(found.strength / site.scale)
            for matrices, index, subspace in ((query, head, copied.read), (key, number, copied.write.mT)):
                weight = torch.zeros(site.embed_dim, site.head_dim, dtype=torch.float64)
                weight[:, coordinates] = amplitude * subspace[:, : len(coordinates)]
                matrices[index] = second.through_norm(weight)
            passed = _beside(copied.write, value.shape[-1], generator=second.draw(f"passed {head}"))
            value[number] = second.through_norm(passed)
            output[head] = self.copy_scale * outcome.stream * passed.mT
        site.query, site.key, site.value, site.output = query, key, value, output
        site.note(
            f"attention on what followed an equal token: {', '.join(reached)}, predicted from embeddings, positions and"
            " copies, without what the host's other branches of the layer before add"
        )
        site.note_value_output()

    def _strength(self, job: Job, head: int, copied: Copied) -> tuple[Reached, Tensor, int]:
        """Return strength, coordinates and context for which a head matches.

        The context is the longest of N, N/2, N/4, … in which it does so to a part worth speaking of, or that where it
        does most: rotations leave few coordinates that match over long distances.
        """
        best: tuple[Reached, Tensor, int] | None = None
        length = job.length
        while best is None or (best[0].share < WORTH and length >= SHORTEST):
            shorter = replace(job, size=(1, length))
            coordinates = matching_coordinates(shorter)[: copied.read.shape[1]]
            share = share_of_matches(
                shorter, copied, coordinates, _falling(shorter, head), generator=job.draw(f"match {head}")
            )
            found = least_strength(share, self.share)
            if best is None or found.share > best[0].share:
                best = found, coordinates, length
            length //= 2
        return best


def _beside(taken: Tensor, width: int, *, generator: torch.Generator) -> Tensor:
    """Draw orthonormal directions (D, width) beside the rows of ``taken``, as far as there is room."""
    dim = taken.shape[1]
    drawn = torch.randn(dim, width, dtype=torch.float64, generator=generator)
    if width + len(taken) <= dim:
        drawn = drawn - taken.mT @ (taken @ drawn)
    return torch.linalg.qr(drawn).Q


def _falling(job: Job, head: int) -> Tensor | None:
    """What ALiBi adds to the logits of a head, (N, N); ``None`` without."""
    if job.positions.alibi is None:
        return None
    tokens = torch.arange(job.length)
    return -job.positions.alibi.slopes[head] * (tokens[:, None] - tokens)
