"""Induction: a previous-token head, and a head of the next layer that continues what was seen before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from structured_init.attention.sequence.balance import BALANCED, Balance, measure_balance, scale_heads
from structured_init.attention.sequence.copies import write_outputs, write_values
from structured_init.attention.sequence.heads import Layer, report_offsets, warn_of_short
from structured_init.attention.sequence.matching import MatchingHeads
from structured_init.attention.sequence.previous_token import (
    PreviousToken,
    ask_layer,
    find_towers,
    heads_of,
    prepare_each,
    refuse_what_cannot_run,
)
from structured_init.hosts.attention import AttentionSite, left_unknown
from structured_init.hosts.attention_positions import attention_positions
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_finite, check_positive, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import TrialWeights, Weights

COPIES = 1.5  # s over the root mean square of the stream: as large as it, where a head looks
LONGEST = 512  # tokens for which it is solved, unless asked otherwise
BALANCE = {BALANCED, "PreviousToken: positions", "PreviousToken: a direction common to all tokens"}


@dataclass(eq=False, repr=False)
class Induction(Initializer):
    """The circuit that continues a sequence as it went on before: … A B … A → B.

    Heads of the first layer look at the token before (:class:`PreviousToken`) and copy what it holds into a subspace of
    their own: W_v = V (D, k), W_o = s Oᵀ. Heads of the second layer hold the present token against those copies,
    W_q = m V R and W_k = m O R, so that each token looks at those that followed its equals, and pass what they hold on:
    W_v = U, W_o = s Uᵀ, which an output tied to the embeddings soon learns to read. Added positions leave V and O to
    tokens, R keeps out what all tokens have in common, and m is searched on the second layer's call.

    Args:
        circuits: how many of them, each with a head in either layer and subspaces of its own.
        share: of attention, between 0 and 1, that a first head puts on the token before, and a second one in a random
            sequence that comes twice on what followed; the least strength that gives it is taken.
        others: the root mean square that the other heads of the first layer, and what follows it, may each add, over
            that of the stream; where the host built them larger, the last matrices of these heads and of the MLP are
            scaled down. ``None``: the host's own, or no more than the stream, or 0.3, 0.1, …, 0.01 of that, the
            first with which the share can be had, else the best.
        circuit: without, positions and balance alone are written: the control for what is changed beside the circuit.
        context: tokens of the texts on which it is searched; ``None``: the host's longest context, at most 512.
        causal: as in ``PreviousToken``.
        where: which attention layers, by name: the first two of every tower among them are used.

    Raises:
        StructuredInitError: at :meth:`plan`, a host with fewer than two layers of attention, or one that looks both
            ways; more circuits than heads; a model that cannot be run; and as in ``PreviousToken``.

    Example:
        >>> report = initialize(model, Induction(), seed=0)
        >>> report.notes["h.1.attn"]
        'attention on what followed an equal token: head 1: 0.86 at 64 tokens, measured on …'

    Source: ours; constructions and measurements in ``docs/previous_token.md``; the circuit is Olsson et al. 2022's.
    """

    circuits: int = 1
    share: float = 0.9
    others: float | None = None
    circuit: bool = True
    context: int | None = None
    causal: bool | None = None
    where: Where = None

    def __post_init__(self) -> None:
        check_whole("Induction", circuits=self.circuits)
        check_finite("Induction", share=self.share)
        check_positive("Induction", null=True, others=self.others)
        check_whole("Induction", least=4, null=True, context=self.context)
        if not 0 < self.share < 1:
            raise StructuredInitError(f"Induction: share must lie between 0 and 1, got {self.share}")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        refuse_what_cannot_run("Induction", weights)
        if self.circuit:
            self._write(weights, rng)
            return
        above = TrialWeights(weights)
        balances = self._write(above, rng)
        for update in above.updates.values():
            if set(update.by) <= BALANCE:
                weights.write(update.target, update.value, update.by[-1])
        for balance in weights.each(balances):
            site = balance.first.site.through(weights)
            scale_heads(site.by(BALANCED), range(site.num_heads), balance.applied.heads)
            site.note("the balance and the positions of Induction, without its circuit")
        weights.attention.update(above.attention)
        weights.skipped.update(above.skipped)

    def _write(self, weights: Weights, rng: Draws) -> list[Balance]:
        """Write the circuits, and return how other heads were scaled for each."""
        towers = [tower[:2] for tower in find_towers("Induction", weights, self.where)]
        pairs = prepare_each("Induction", weights, towers, lambda sites: self._ask_layers(sites, weights, rng))
        return [self._write_circuits(first, second) for first, second in weights.each(pairs)]

    def _write_circuits(self, first: Layer, second: Layer) -> Balance:
        """Write the heads of two layers and the balance between them, and report them."""
        width = self.circuits * first.site.value.shape[-1]
        looking = heads_of(first, [2 * width, width], set())
        looking.search()
        read, write = write_values(looking)
        balance = measure_balance(looking, second.site)
        size = COPIES * balance.stream
        write_outputs(looking, write, size)
        matching = MatchingHeads(second, (read, write), balance, self.others)
        matching.search()
        matching.pass_on(size)
        report_offsets(looking, balance.describe())
        self._report(matching)
        return balance

    def _ask_layers(self, sites: list[AttentionSite], weights: Weights, rng: Draws) -> tuple[Layer, Layer]:
        site = sites[0]
        if len(sites) < 2:
            left = "".join(f"; '{name}': {why}" for name, why in left_unknown(weights).items())
            only = f"'{site.name}' is the only attention layer of its stack"
            raise StructuredInitError(f"Induction: {only}: an induction circuit takes two{left}")
        keys = min(each.num_key_value_heads for each in sites)
        if self.circuits > keys:
            raise StructuredInitError(f"Induction: {self.circuits} circuits for the {keys} keys of '{site.name}'")
        group = site.num_heads // site.num_key_value_heads
        offsets = [None if head % group else 1 for head in range(self.circuits * group)]
        asked = PreviousToken(offsets, share=self.share, context=self.context or LONGEST, causal=self.causal)
        first = ask_layer(site, weights, rng, asked, twice=True)
        if not first.causal:
            raise StructuredInitError(
                f"Induction: '{site.name}' is not causal, so it predicts no next token: use PreviousToken, or pass"
                " causal=True if it is"
            )
        return first, self._second(sites[1], first)

    def _second(self, site: AttentionSite, first: Layer) -> Layer:
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

    def _report(self, matching: MatchingHeads) -> None:
        """Say in the report what tokens look at in the network."""
        site = matching.site
        length = matching.looks.real.shape[1] - site.prefix_tokens
        each = ", ".join(f"head {head}: {share:.2f} at {length:,} tokens" for head, share in matching.shares.items())
        said = f"attention on what followed an equal token: {each}, measured on {matching.layer.trial.on}"
        if matching.used < site.head_dim:
            unused = f"{site.head_dim - matching.used} of {site.head_dim}"
            said += f"; {unused} dimensions of a head's queries and keys are zero"
            limited = matching.used == len(matching.coordinates)
            said += ", fewer with a shorter context=" if limited else ""
        site.note(said)
        why = "wider heads, smaller context= or others= may give more"
        warn_of_short(matching, "on what followed an equal token", why, hides="its mask hides what followed")
