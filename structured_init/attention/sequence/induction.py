"""Induction: a previous-token head, and a head of the next layer that continues what was seen before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from structured_init.arguments import check_finite, check_positive, check_whole
from structured_init.attention.sequence.heads import Layer, Reached, least_strength, write_copies
from structured_init.attention.sequence.matching import (
    Match,
    Recorded,
    matched,
    matching_coordinates,
    record,
    share_of_matches,
)
from structured_init.attention.sequence.measured import (
    compared,
    heads_have,
    measured_shares,
    report_shares,
)
from structured_init.attention.sequence.previous_token import KINDS, prepare, prepare_each, tokens_first, towers
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import AttentionSite, attention_sites, left_unknown
from structured_init.hosts.attention_positions import attention_positions
from structured_init.hosts.attention_site import is_causal
from structured_init.hosts.mlp import mlp_sites
from structured_init.hosts.positions import position_sites
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.names import is_stack, named_plain_modules, within
from structured_init.overlay import Above, Weights

LONGEST = 512  # tokens for which it is solved, unless asked otherwise
LIMITS = (math.inf, 1.0, 0.3, 0.1)  # on what other branches add over the stream: the first that suffices is taken
SUFFICIENT = 0.75  # of the share asked for
Subspaces = dict[int, Tensor]
BALANCED = "Induction: balance"
BALANCE = {BALANCED, "PreviousToken: positions", "PreviousToken: a direction common to all tokens"}


@dataclass(eq=False, repr=False)
class Induction(Initializer):
    """The circuit that continues a sequence as it went on before: … A B … A → B.

    Heads of the first layer look at the token before (:class:`PreviousToken`) and copy what it holds into a subspace of
    their own: W_v = V (D, k), W_o = s Oᵀ. Heads of the second layer hold the present token against those copies,
    W_q = m V R and W_k = m O R, so that each token looks at those that followed its equals, and pass what they hold on:
    W_v = U, W_o = s Uᵀ, which an output tied to the embeddings soon learns to read. Added positions leave V and O to
    tokens, R keeps out what all tokens have in common, and m is solved on what the network is seen to carry before the
    second layer. Where that drowns tokens and copies, the other branches of the first layer are scaled down.

    Args:
        circuits: how many of them, each with a head in either layer and subspaces of its own.
        share: of attention, between 0 and 1, that a first head puts on the token before, and a second one in a random
            sequence that comes twice on what followed; the least strength that gives it is taken.
        copy_scale: s over the root mean square of the stream.
        gain: as in ``PreviousToken``, but in the dimensions that positions keep, where copies take others. The report
            gives it over all dimensions, which is less.
        others: the root mean square that the other heads of the first layer, and what follows it, may each add, over
            that of the stream; where the host built them larger, the last matrices of these heads and of the MLP are
            scaled down. ``None``: the host's own, or 1, 0.3, 0.1, the first with which three quarters of the share are
            had, else the best.
        circuit: without, positions and balance alone are written: the control for what is changed beside the circuit.
        context: tokens for which it is solved; ``None``: the host's longest context, at most 512.
        causal: as in ``PreviousToken``.
        where: which attention layers, by name: the first two of every tower among them are used.

    Raises:
        StructuredInitError: at :meth:`plan`, a host with fewer than two layers of attention, or one that looks both
            ways; more circuits than heads; and as in ``PreviousToken``.

    Example:
        >>> report = initialize(model, Induction(), seed=0)
        >>> report.notes["h.1.attn"]
        'attention on what followed an equal token: head 1: 0.86 at 64 tokens, measured on …'

    Source: ours; constructions and measurements in ``docs/previous_token.md``; the circuit is Olsson et al. 2022's.
    """

    circuits: int = 1
    share: float = 0.9
    copy_scale: float = 1.5
    gain: float | None = None
    others: float | None = None
    circuit: bool = True
    context: int | None = None
    causal: bool | None = None
    where: Where = None

    def __post_init__(self) -> None:
        check_whole("Induction", circuits=self.circuits)
        check_finite("Induction", share=self.share)
        check_positive("Induction", copy_scale=self.copy_scale)
        check_positive("Induction", null=True, gain=self.gain, others=self.others)
        check_whole("Induction", least=4, null=True, context=self.context)
        if not 0 < self.share < 1:
            raise StructuredInitError(f"Induction: share must lie between 0 and 1, got {self.share}")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        if self.circuit:
            self._write(weights, rng)
            return
        above = Above(weights)
        factors = self._write(above, rng)
        for update in above.updates.values():
            if set(update.by) <= BALANCE:
                weights.write(update.target, update.value, update.by[-1])
        for site in weights.each([each for each in attention_sites(weights) if each.name in factors]):
            scale_heads(site.by(BALANCED), range(site.num_heads), factors[site.name])
            site.note("the balance and the positions of Induction, without its circuit")
        weights.attention.update(above.attention)
        weights.skipped.update(above.skipped)

    def _write(self, weights: Weights, rng: Draws) -> dict[str, float]:
        """Write the circuits, and return by which factor other heads were scaled, by the name of the first layer."""
        factors, chosen = {}, [tower[:2] for tower in towers("Induction", weights, self.where)]
        pairs = prepare_each("Induction", weights, chosen, lambda layers: self._pair(layers, weights, rng))
        for first, second in weights.each(pairs):
            width, copying = first.site.value.shape[-1], len(list(first.heads))
            spare = [width * (len(first.keys) + copying), width * len(first.keys)]
            outcome = KINDS[first.kind](replace(first, gain=self.gain, spare=spare))
            read, write, size = write_copies(first, self.copy_scale, outcome)
            balance, seen, found = self._balanced(first, second, read, write)
            self._match(second, size, found, write)
            factors[first.site.name] = balance.heads
            report_shares([(first, outcome)], balance.sentence(seen))
            self._report(second, found)
        for name in untied_heads(weights):
            weights.note(name, "not tied to the embeddings: it has to learn to read what the circuit passes on")
        return factors

    def _balanced(
        self, first: Layer, second: Layer, read: Subspaces, write: Subspaces
    ) -> tuple[Balance, Recorded, list[Found]]:
        """Scale the other branches of the first layer as little as suffices, and return the matches found there."""
        applied, best, output = Balance(), None, first.site.output
        mlp: dict[nn.Parameter, Tensor] | None = None  # the parameters of its last layer, as they were built
        built = seen = record(first, second)
        least = second.site.scale if second.site.layout.query_key_norm else 0.0
        for limit in LIMITS if self.others is None else (self.others,):
            wanted = Balance.within(limit, built)
            if wanted.mlp != 1 and mlp is None:
                mlp = _last_of_mlp(first, second)
            wanted = wanted if mlp else replace(wanted, mlp=1.0)
            if best is not None and wanted == applied:
                continue
            if wanted != applied:
                applied = _scale(first, wanted, output, mlp or {})
                seen = record(first, second)
            found = []
            for (head, number, _), (copying, source, _) in zip(second.heads, first.heads, strict=True):
                match = matched(second, seen, read[source], write[copying], matching_coordinates(second))
                strength = least_strength(share_of_matches(second, seen, match, head), self.share, least=least)
                found.append(Found(head, number, copying, match, strength))
            worst = min(each.reached.share for each in found)
            if best is None or worst > best[0]:
                best = worst, applied, seen, found
            if worst >= SUFFICIENT * self.share:
                break
        assert best is not None
        if best[1] != applied:
            _scale(first, best[1], output, mlp or {})
        return best[1:]

    def _pair(self, layers: list[AttentionSite], weights: Weights, rng: Draws) -> tuple[Layer, Layer]:
        site = layers[0]
        if len(layers) < 2:
            left = "".join(f"; '{name}': {why}" for name, why in left_unknown(weights).items())
            only = f"'{site.name}' is the only attention layer of its stack{' that is known' if left else ''}"
            raise StructuredInitError(f"Induction: {only}: an induction circuit takes two{left}")
        keys = min(layer.num_key_value_heads for layer in layers[:2])
        if self.circuits > keys:
            raise StructuredInitError(f"Induction: {self.circuits} circuits for the {keys} keys of '{site.name}'")
        group = site.num_heads // site.num_key_value_heads
        offsets = [None if head % group else 1 for head in range(self.circuits * group)]
        settings = {"share": self.share, "context": self.context, "causal": self.causal}
        if said := tokens_first(site, weights):
            raise StructuredInitError(f"Induction: {said}")
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
        length = min(first.length, LONGEST) if self.context is None else first.length
        return replace(first, site=site, positions=positions, offsets=offsets, size=(1, length))

    def _match(self, second: Layer, size: float, found: list[Found], write: dict[int, Tensor]) -> None:
        """Write the heads that match: one for each that copies."""
        site = second.site
        query, key, value, output = (part.double() for part in (site.query, site.key, site.value, site.output))
        for each in found:
            amplitude = math.sqrt(each.reached.strength / site.scale)
            query[each.head], key[each.number] = amplitude * each.match.query, amplitude * each.match.key
            passed = _beside(write[each.copying], value.shape[-1], generator=second.draw(f"passed {each.head}"))
            value[each.number] = second.through_norm(passed)
            output[each.head] = size * passed.mT
        site.query, site.key, site.value, site.output = query, key, value, output

    def _report(self, second: Layer, found: list[Found]) -> None:
        """Measure what tokens look at in the whole network, and say so in the report."""
        site, measured = second.site, measured_shares([second], twice=True)[0]
        shares = {each.head: measured.shares.get(each.head, each.reached.share) for each in found}
        length = measured.length or second.length
        each = ", ".join(
            # It was solved for one equal token; several, of a small vocabulary, get more.
            f"head {each.head}: {compared(got := measured.shares.get(each.head), max(each.reached.share, got or 0))} at"
            f" {length:,} tokens"
            for each in found
        )
        solved = "" if length == second.length else f", solved for {second.length:,}"
        seen_on = f"measured on {measured.on}, repeated{solved}"
        how = seen_on if measured.shares else f"predicted, not measured: {measured.on}"
        used = max(int(each.match.query.any(dim=0).sum()) for each in found)
        fewer = ", fewer with a shorter context=" if used == len(matching_coordinates(second)) else ""
        zero = f"; {site.head_dim - used} of {site.head_dim} dimensions of a head's queries and keys are zero{fewer}"
        site.note(f"attention on what followed an equal token: {each}, {how}{zero if used < site.head_dim else ''}")
        site.note_value_output()
        short = [each for each in found if shares[each.head] < self.share / 2]
        if short:
            least = min(shares[each.head] for each in short)
            why = "wider heads, smaller context= or others= may give more" if least else "its mask hides what followed"
            second.weights.fall_short(
                f"{heads_have([each.head for each in short], site.name)} {least:.2f} of attention on what followed an"
                f" equal token, of {self.share:g} asked for: {why}"
            )


def untied_heads(weights: Weights) -> list[str]:
    """Return the linear layers outside of all stacks that have an output for every word and are not tied."""
    stacks = [name for name, module in weights.modules.items() if is_stack(module)]
    linears = {name: module.weight for name, module in weights.modules.items() if isinstance(module, nn.Linear)}
    outside = [name for name in linears if not any(within(name, stack) for stack in stacks)]
    places = {id(site.tensor) for site in position_sites(weights)}
    tables = [m.weight for m in weights.modules.values() if isinstance(m, nn.Embedding) and id(m.weight) not in places]
    place = lambda weight: None if weight.is_meta else weight.untyped_storage().data_ptr()  # noqa: E731

    def untied(weight: Tensor) -> bool:
        alike = [table for table in tables if table.shape == weight.shape]
        return bool(alike) and not any(t is weight or (place(t) and place(t) == place(weight)) for t in alike)

    return [name for name in outside if untied(linears[name])]


@dataclass(frozen=True)
class Balance:
    """Factors on what the first layer's other heads add, and on what the MLP behind them does."""

    heads: float = 1.0
    mlp: float = 1.0

    @classmethod
    def within(cls, limit: float, seen: Recorded) -> Balance:
        """Return the factors by which each adds at most ``limit`` times the stream."""
        most = limit * seen.stream
        return cls(*(most / size if size > most else 1.0 for size in (seen.heads, seen.rest)))  # 1 of NaN

    def sentence(self, seen: Recorded) -> str:
        """Say for the report what was scaled."""
        if self == Balance():
            return ""
        mlp = "" if self.mlp == 1 else f" and its MLP by {self.mlp:.2g}"
        rest = "" if math.isnan(seen.rest) else f", and the rest {seen.rest / seen.stream:.2f}"
        return (
            f"; its other heads were scaled by {self.heads:.2g}{mlp}: they are {seen.heads / seen.stream:.2f} times the"
            f" stream{rest}"
        )


class Found(NamedTuple):
    """A head that matches, the number of its key, the head whose copies it looks for, how, and what that gives."""

    head: int
    number: int
    copying: int
    match: Match
    reached: Reached


def _scale(first: Layer, wanted: Balance, output: Tensor, mlp: Mapping[nn.Parameter, Tensor]) -> Balance:
    """Make other heads and the last layer of the MLP what they were built as, times the factors, and return these."""
    site, taken = first.site.by(BALANCED), [head for head, _, _ in first.heads]
    site.output = output
    scale_heads(site, [head for head in range(site.num_heads) if head not in taken], wanted.heads)
    for parameter, built in mlp.items():
        first.weights.write(parameter, wanted.mlp * built, BALANCED)
        if wanted.mlp == 1:
            first.weights.take_back(parameter, BALANCED)
    return wanted


def _beside(taken: Tensor, width: int, *, generator: torch.Generator) -> Tensor:
    """Draw orthonormal directions (D, width) beside the rows of ``taken``, as far as there is room."""
    dim = taken.shape[1]
    drawn = torch.randn(dim, width, dtype=torch.float64, generator=generator)
    if width + len(taken) <= dim:
        drawn = drawn - taken.mT @ (taken @ drawn)
    return torch.linalg.qr(drawn).Q


def scale_heads(site: AttentionSite, heads: Iterable[int], factor: float) -> None:
    """Multiply what some heads of a layer add."""
    if factor != 1:
        output = site.output
        output[list(heads)] *= factor
        site.output = output


def _last_of_mlp(first: Layer, second: Layer) -> dict[nn.Parameter, Tensor]:
    """Return the parameters of the last layer of the one MLP between two layers; none, with a note, where unknown."""
    site, weights, lasts = first.site, first.weights, []
    for mlp in mlp_sites(weights):
        own = {id(each.weight) for each in (mlp.layout.first, mlp.layout.gate) if each is not None}
        inside = named_plain_modules(mlp.module)
        if within(site.name, mlp.name) and site.name != mlp.name:  # the attention lies in the module that holds the MLP
            inside = [each for each in inside if not within(each[0], site.name.removeprefix(f"{mlp.name}."))]
        last = [
            module
            for _, module in inside
            for weight in module._parameters.values()
            if weight is not None and weight.ndim == 2 and site.embed_dim in weight.shape and id(weight) not in own
        ]
        lasts += last if len(last) == 1 else []
    between = record(first, second, lasts).between if lasts else []
    if len(between) != 1:
        site.note("what follows it could not be scaled: it is no single MLP whose last matrix is known")
        return {}
    return {each: weights.read(each).clone() for each in between[0]._parameters.values() if each is not None}
