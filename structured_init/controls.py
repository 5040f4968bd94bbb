"""Controls: the positions of another initializer alone; its matrices turned at random, and as sharp as they were.

Letters: H heads, Hkv key–value heads, D and E widths of tokens, k head_dim, F filters; B batch, N query tokens, M keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from structured_init.attention import Positions
from structured_init.attention.planned_run import planned_maps
from structured_init.hosts.attention import AttentionSite, attention_sites
from structured_init.hosts.attention_positions import relative_bias
from structured_init.hosts.depthwise import depthwise_conv_sites
from structured_init.hosts.layout import projection_bias
from structured_init.hosts.positions import position_sites
from structured_init.hosts.state_space import state_space_sites
from structured_init.hosts.watched import same_attention, unpadded, watched_attention
from structured_init.initializer import Initializer, members
from structured_init.inputs import as_inputs
from structured_init.ssm.mimetic import measures, scan_scale
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import random_orthogonal
from structured_init.weights import TrialWeights, Weights

LARGEST = 12.0  # powers of two by which logits may be scaled up or down
HALVINGS = 40
ROUNDS = 5  # of scaling a layer
EQUAL, CLOSE = 1e-4, 0.02  # nats: no further round; reached, for the report
SAMPLES = 16  # on which entropies are measured, where there are training data
QUERY_KEY = ("query", "key")


def is_structured(initializer: Initializer) -> bool:
    """Tell whether an initialization writes more than a baseline and positions, so that it needs controls."""
    return not all(each.baseline or isinstance(each, (Positions, Control)) for each in members(initializer))


class Control(Initializer):
    """An initialization made of another one, which has to have more in it than a baseline and positions."""

    def __init__(self, initializer: Initializer) -> None:
        name = type(self).__name__
        if not isinstance(initializer, Initializer):
            raise StructuredInitError(f"{name} takes an Initializer object such as Mimetic(), got {initializer!r}")
        if not is_structured(initializer):
            raise StructuredInitError(
                f"{name}: {initializer!r} writes only a baseline and positions, so there is nothing to control for"
            )
        self.initializer = initializer

    @property
    def needs_batch(self) -> bool:
        return self.initializer.needs_batch

    @property
    def samples_to_watch(self) -> int:
        return self.initializer.samples_to_watch

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return self.initializer.freezing(weights)


class SamePositions(Control):
    """The positions that another initializer writes, with the host's matrices: the control for positions.

    Positions alone give much of what is published for structured attention. This one draws exactly the positions that
    the other initializer draws, and the baseline of the same ``Compose``, and leaves the rest to the host. Token
    embeddings count as positions where the other one writes them (``PreviousToken`` under rotary positions).

    Args:
        initializer: the other one.

    Raises:
        StructuredInitError: at construction, ``initializer`` is none, or has nothing structured in it; at :meth:`plan`,
            it wrote no positions.

    Example:
        >>> report = initialize(model, SamePositions(PreviousToken()), seed=0)

    Source: ours.
    """

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        trial = TrialWeights(weights)
        for member in members(self.initializer):
            member.plan(weights if member.baseline else trial, rng=rng, batch=batch)
        kept = {id(tensor): tensor for tensor in _positions(weights) if id(tensor) in trial.updates}
        if not kept:
            why = "writes no positions of this model: it has no such control"
            raise StructuredInitError(f"SamePositions: {self.initializer!r} {why}")
        for key, tensor in weights.each(kept.items()):
            by = ", ".join(trial.updates[key].by)
            weights.write(tensor, trial.read(tensor), f"SamePositions: of {by}")

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        for member in members(self.initializer):
            if not is_structured(member):
                yield from member.freezing(weights)


def _positions(weights: Weights) -> list[Tensor]:
    """Return what an initializer has said about positions with: position and token embeddings.

    Tables of relative positions say what a head looks at, also those that a host keeps as embeddings.
    """
    tensors = [site.tensor for site in position_sites(weights)]
    for name, module in weights.modules.items():
        if isinstance(module, nn.Embedding) and not name.endswith("relative_attention_bias"):
            tensors.append(module.weight)
    return tensors


def turned_heads(
    left: Float[Tensor, "heads D k"], right: Float[Tensor, "kv_heads E k"], *, generator: torch.Generator
) -> tuple[Float64[Tensor, "heads D k"], Float64[Tensor, "kv_heads E k"]]:
    """Return U L_h R_g and V N_g R_g with random orthogonal U (D, D), V (E, E) and R_g (k, k).

    The product of a head becomes U L_h N_gᵀ Vᵀ: its singular values, those of each factor, and those of all heads side
    by side are kept exactly. Alignment of the two sides, with positions and with other layers is lost.
    Where N has fewer heads, consecutive ones of L share one, and its R_g.
    """
    heads, width, inner = left.shape
    kv_heads, other, _ = right.shape
    outer = random_orthogonal(width, width, generator=generator)
    across = random_orthogonal(other, other, generator=generator)
    inside = torch.stack([random_orthogonal(inner, inner, generator=generator) for _ in range(kv_heads)])
    shared = inside.repeat_interleave(heads // kv_heads, dim=0)
    return outer @ left.double() @ shared, across @ right.double() @ inside


def turned_matrix(
    matrix: Float[Tensor, "rows columns"], *, generator: torch.Generator
) -> Float64[Tensor, "rows columns"]:
    """Return U M V with random orthogonal U and V: the same singular values, between other directions."""
    rows, columns = matrix.shape
    left = random_orthogonal(rows, rows, generator=generator)
    return left @ matrix.double() @ random_orthogonal(columns, columns, generator=generator)


def shuffled_columns(
    table: Float[Tensor, "rows columns"], *, generator: torch.Generator
) -> Float[Tensor, "rows columns"]:
    """Return each column's entries in a random order of its own: the same values, at other places.

    Of filters (F, pixels), this keeps the variance of every pixel and destroys the correlations between pixels.
    """
    orders = torch.stack([torch.randperm(len(table), generator=generator) for _ in range(table.shape[1])], dim=1)
    return table.gather(0, orders)


class Scrambled(Control):
    """What another initializer writes, turned at random: the control for alignment.

    A structured initialization changes the positions, the size of weights and their alignment. This one keeps positions
    and sizes and destroys the alignment, so that the difference between the two is what structure is worth. The other
    initializer draws exactly what it draws alone. Then

    - **queries and keys** of a layer become U W_q R and V W_k R, with random rotations U, V of the tokens' space and R
      inside each head: singular values of every factor, head and product are kept exactly. Their biases are turned
      head by head, and the entries of a relative-bias table change places;
    - **values and outputs** become V W_v R and Rᵀ W_o Uᵀ in the same way;
    - **depthwise filters** exchange each pixel's values among the channels: the variance of each pixel is kept, the
      correlation between pixels is not;
    - **other matrices** (of MLPs, of state-space layers, of convolutions seen as matrices) become U W V; W_B and W_C of
      every group, and W_Δ, each for itself.

    What was not written is not touched, nor are positions, embeddings, norms, and what a baseline in the same
    ``Compose`` has written.

    Args:
        initializer: the other one.

    Raises:
        StructuredInitError: at construction, ``initializer`` is none, or has nothing structured in it; at :meth:`plan`,
            it wrote nothing that scrambling changes: only zeros, or filters that are all equal.

    Example:
        >>> report = initialize(model, Scrambled(Mimetic()), seed=0)

    Source: ours.
    """

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        written = _Written(weights, rng)
        weights.about = "before scrambling: "
        for member in members(self.initializer):
            tensors, assignments = len(weights.written), len(weights.assignments)
            member.plan(weights, rng=rng, batch=batch)
            if is_structured(member):
                written.tensors.update(weights.written[tensors:])
                written.assigned.update(weights.assignments[assignments:])
        weights.about = ""
        self.scramble(written)

    def scramble(self, written: _Written) -> None:
        """Turn what was written, and raise a ``StructuredInitError`` where that changes nothing."""
        before = written.digest()
        written.shuffle_filters()
        written.turn_state_spaces()
        written.turn_attention()
        written.turn_matrices()
        if written.digest() == before:
            raise StructuredInitError(
                f"Scrambled: {self.initializer!r} wrote nothing in this model that scrambling changes"
            )


@dataclass
class _Written:
    """What the structured members of an initialization have written, to be turned."""

    weights: Weights
    rng: Draws
    tensors: set[int] = field(default_factory=set)  # by identity
    assigned: set[tuple[str, str]] = field(default_factory=set)  # layers, and which of their matrices

    @property
    def sites(self) -> list[AttentionSite]:
        """The attention layers of the model, where anybody has looked for any."""
        return attention_sites(self.weights, cross=True) if self.weights.attention else []

    def digest(self) -> bytes:
        """Return what tells whether any number becomes another one."""
        digest = sha256()
        for update in self.weights.updates.values():
            value = self.weights.read(update.target).float() + 0.0  # −0 is 0
            digest.update(value.contiguous().numpy())
        return digest.digest()

    def has(self, site: AttentionSite, *matrices: str) -> bool:
        """Whether one of some matrices was written in a layer."""
        return any((site.name, matrix) in self.assigned for matrix in matrices)

    def shuffle_filters(self) -> None:
        """Exchange the pixels' values of depthwise filters."""
        for site in self.weights.each(depthwise_conv_sites(self.weights)):
            if id(site.module.weight) in self.tensors:
                draw = self._draw(site.weight_name, "filters")
                shuffled = shuffled_columns(site.filters.flatten(1), generator=draw)
                site.write(shuffled.reshape(site.filters.shape), "Scrambled: filters")
                self.tensors.remove(id(site.module.weight))

    def turn_state_spaces(self) -> None:
        """Turn W_B and W_C of every group, and W_Δ; others may lie in the same matrix."""
        for site in state_space_sites(self.weights):
            blocks = {"B": site.layout.B, "C": site.layout.C, "dt_weight": site.layout.dt}
            for name, block in blocks.items():
                if (site.name, name) in self.assigned:
                    draw, value = self._draw(site.name, name), getattr(site, name)
                    groups = value.reshape(-1, *value.shape[-2:])
                    turned = torch.stack([turned_matrix(each, generator=draw) for each in groups])
                    setattr(site.by("Scrambled: matrices"), name, turned.reshape(value.shape))
                    self.tensors.discard(id(block.weight))
            if site.name in self.weights.measures:  # of the initializer: these are of what stands there now
                after = measures(site, scan_scale(site)).items()
                self.weights.measure(site.name, {name: (value, value) for name, value in after})

    def turn_attention(self) -> None:
        """Turn the matrices, biases and tables of attention."""
        for site in self.weights.each(self.sites):
            if self.has(site, *QUERY_KEY):
                by, draw = site.by("Scrambled: query_key"), self._draw(site.name, "query_key")
                by.query, by.key = turned_heads(site.query, site.key, generator=draw)
                self.tensors.difference_update(map(id, site.layout.parameters()))
            for part in QUERY_KEY:
                bias = projection_bias(site.module, getattr(site.layout, part))
                if bias is not None and {*map(id, bias.tensors)} & self.tensors:
                    draw, rows = self._draw(site.name, f"{part} bias"), bias.get(self.weights).double()
                    turned = [row @ random_orthogonal(len(row), len(row), generator=draw) for row in rows]
                    bias.set(self.weights, torch.stack(turned), "Scrambled: query_key")
            found = relative_bias(site, self.weights)
            if found is not None and id(found.table) in self.tensors:
                self.tensors.remove(id(found.table))  # layers may share a table
                draw = self._draw(self.weights.names(found.table)[0], "relative positions")
                shuffled = shuffled_columns(found.get(self.weights), generator=draw)
                self.weights.write(found.table, shuffled, "Scrambled: query_key")
            if self.has(site, "value", "output"):
                by, draw = site.by("Scrambled: value_output"), self._draw(site.name, "value_output")
                output, by.value = turned_heads(site.output.mT, site.value, generator=draw)
                by.output = output.mT
                self.tensors.difference_update(map(id, site.layout.parameters()))

    def turn_matrices(self) -> None:
        """Turn the other matrices, that are no embeddings or positions."""
        self.tensors.difference_update(map(id, _positions(self.weights)))
        for module in self.weights.each(self.weights.modules.values()):
            weight = module._parameters.get("weight")
            if id(weight) in self.tensors and weight.ndim > 1:
                value, draw = self.weights.read(weight), self._draw(self.weights.names(weight)[0], "matrices")
                turned = turned_matrix(value.flatten(1), generator=draw)
                self.weights.write(weight, turned.reshape(value.shape), "Scrambled: matrices")

    def _draw(self, name: str, part: str) -> torch.Generator:
        return self.rng.generator(name, f"Scrambled: {part}")


def row_entropy(logits: Float[Tensor, "batch heads queries keys"]) -> Float64[Tensor, " heads"]:
    """Return the mean over samples and queries of −Σ_j A_ij ln A_ij, in nats, of A = softmax(logits); −∞ is masked.

    Queries that see no key, as padding may, do not count.
    """
    blind = logits.isneginf().all(dim=-1)
    logs = logits.double().log_softmax(dim=-1)
    each = -(logs.exp() * logs.clamp_min(-1e300)).sum(dim=-1).masked_fill(blind, 0)
    return each.sum(dim=(0, -1)) / (~blind).sum(dim=(0, -1))


def matching_factor(
    logits: Float[Tensor, "batch heads queries keys"], target: Float64[Tensor, " heads"]
) -> Float64[Tensor, " heads"]:
    """Return the factor on each head's logits at which its entropy is the target, or as near as 2^±12 brings it.

    Bisection: entropy falls as logits grow (dH/df = −f·Var, never positive).
    """
    low, high = torch.full_like(target, -LARGEST), torch.full_like(target, LARGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_flat = row_entropy(2 ** middle[:, None, None] * logits) > target
        low, high = torch.where(too_flat, middle, low), torch.where(too_flat, high, middle)
    return 2 ** ((low + high) / 2)


class Sharpened(Scrambled):
    """What another initializer writes, turned at random, with attention as sharp as it had: the control for sharpness.

    Alignment with positions and tokens makes attention sharp, so ``Scrambled`` loses sharpness with it. This one scales
    queries and keys (under grouped queries, queries alone) of each head, layer after layer in one network, until the
    mean entropy of its attention on real inputs is that of the other initializer. What is left between the two is what
    attention looks at.

    Args:
        initializer: the other one.

    Raises:
        StructuredInitError: as :class:`Scrambled`; at :meth:`plan`, there are no inputs, the other one writes no
            queries and keys, or the maps of a layer are not seen in a forward pass.

    What norms of queries and keys erase cannot be matched; the report gives the entropies that were reached.

    Example:
        >>> report = initialize(model, Sharpened(Mimetic()), seed=0, batch=images)

    Source: ours.
    """

    @property
    def samples_to_watch(self) -> int:
        return max(SAMPLES, self.initializer.samples_to_watch)

    def scramble(self, written: _Written) -> None:
        weights = written.weights
        chosen = [site for site in written.sites if written.has(site, *QUERY_KEY)]
        if not chosen:
            raise StructuredInitError(f"Sharpened: {self.initializer!r} writes no queries and keys of this model")
        wanted = {name: row_entropy(logits) for name, logits in _logits(weights, chosen).items()}
        super().scramble(written)
        present = _logits(weights, chosen)
        for site in weights.each(chosen):
            target = wanted[site.name]
            for _ in range(ROUNDS):  # one is enough but where biases are added, which the factor does not reach
                if _apart(present[site.name], target) < EQUAL:
                    break
                _scale(site.by("Sharpened: query_key"), matching_factor(present[site.name], target), weights)
                present = _logits(weights, chosen)
            off = _apart(present[site.name], target)
            given = f"entropy {target.mean():.3g} nats, as in what is scrambled"
            site.note(given if off < CLOSE else f"{given}, could not be matched: up to {off:.2g} nats off")


def _apart(logits: Float[Tensor, "batch heads queries keys"], target: Float64[Tensor, " heads"]) -> float:
    return (row_entropy(logits) - target).abs().max().item()


def _scale(site: AttentionSite, factor: Float64[Tensor, " heads"], weights: Weights) -> None:
    """Multiply the logits of every head by its factor, through queries and keys and their biases."""
    factors = dict.fromkeys(QUERY_KEY, factor.sqrt())
    if site.num_heads != site.num_key_value_heads:  # a shared key would scale other heads as well
        factors = {"query": factor}
    for part, of_part in factors.items():
        setattr(site, part, getattr(site, part).double() * of_part[:, None, None])
        bias = projection_bias(site.module, getattr(site.layout, part))
        if bias is not None:
            bias.set(weights, bias.get(weights) * of_part[:, None], "Sharpened: query_key")


def _logits(weights: Weights, sites: list[AttentionSite]) -> dict[str, Float64[Tensor, "batch heads queries keys"]]:
    """Run the planned network once, and return the logarithms of the maps of each layer, without padding."""
    if not weights.can_ask:
        raise StructuredInitError("Sharpened measures attention on real inputs: give batch=…")
    places = {}
    for site in sites:
        seen = same_attention(site, watched_attention(weights))
        if seen is None or not seen.maps:
            raise StructuredInitError(f"Sharpened: the maps of '{site.name}' are not seen, so they cannot be matched")
        places[site.name] = seen.maps[0]
    logits = {}
    for name, maps in planned_maps(weights, places, as_inputs(weights.ask())).items():
        if maps.shape[-1] == maps.shape[-2]:  # else it is not known which queries are padding
            maps = maps.masked_fill(~unpadded(maps)[:, None, :, None], 0)
        logits[name] = maps.double().log()
    return logits
