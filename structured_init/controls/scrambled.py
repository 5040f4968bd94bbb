"""Scrambled: what another initializer writes, with the same singular values and no alignment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from structured_init.arguments import check_flag
from structured_init.controls.members import Control, is_structured, members
from structured_init.controls.turned import shuffled_columns, turned_heads, turned_matrix, turned_rows
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.layout import PARTS
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite, attention_sites
from structured_init.sites.bias import projection_bias
from structured_init.sites.depthwise import depthwise_conv_sites
from structured_init.sites.relative import relative_bias

PAIRS = {"query_key": ("query", "key"), "value_output": ("output", "value")}


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
    - **other matrices** (of MLPs, of state-space layers, of convolutions seen as matrices) become U W V.

    A part that was not written is not touched, nor are positions, embeddings, norms, and what a baseline in the same
    ``Compose`` has written.

    Args:
        initializer: the other one.
        query_key: scramble queries and keys.
        value_output: scramble values and outputs.
        filters: scramble depthwise filters.
        matrices: scramble the other matrices.

    Raises:
        StructuredInitError: at construction, ``initializer`` has nothing structured in it, or all parts are off; at
            :meth:`plan`, it wrote nothing that is to be scrambled.

    Example:
        >>> report = initialize(model, Scrambled(Mimetic()), seed=0)

    Source: ours.
    """

    def __init__(
        self,
        initializer: Initializer,
        query_key: bool = True,
        value_output: bool = True,
        filters: bool = True,
        matrices: bool = True,
    ) -> None:
        super().__init__(initializer)
        check_flag("Scrambled", query_key=query_key, value_output=value_output, filters=filters, matrices=matrices)
        if not (query_key or value_output or filters or matrices):
            raise StructuredInitError("Scrambled: query_key, value_output, filters and matrices are all off")
        self.query_key = query_key
        self.value_output = value_output
        self.filters = filters
        self.matrices = matrices

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        earlier, weights.assigned = weights.assigned, {}
        written: set[int] = set()
        for member in members(self.initializer):
            before = {key: len(update.by) for key, update in weights.updates.items()}
            member.plan(weights, rng=rng, batch=batch)
            if is_structured(member):
                updates = weights.updates.items()
                written |= {key for key, update in updates if len(update.by) > before.get(key, 0)}
        sites = attention_sites(weights) if weights.attention else []  # none where no member looked for any
        taken = self._filters(weights, rng, written) + self._matrices(weights, sites, rng, written)
        taken += self._attention(weights, sites, rng, written)  # last, so that what a network does is measured in it
        for name, parts in earlier.items():
            weights.assigned.setdefault(name, set()).update(parts)
        if not taken:
            raise StructuredInitError(
                f"Scrambled: {self.initializer!r} wrote no matrix of this model whose alignment could be destroyed"
            )

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return self.initializer.freezing(weights)

    def _attention(self, weights: Weights, sites: list[AttentionSite], rng: Draws, written: set[int]) -> int:
        """Turn the matrices, biases and tables of attention that were written, and say how many."""
        taken, tables = 0, set()
        for site in weights.each(sites):
            parts = weights.assigned.get(site.name, set())
            for name, (left, right) in PAIRS.items():
                if getattr(self, name) and parts & {left, right}:
                    _turn(site.by(f"Scrambled: {name}"), left, right, rng.generator(site.name, f"Scrambled: {name}"))
                    taken += 1
            if self.query_key:
                taken += _turn_biases(site, weights, rng, written)
                taken += _shuffle_table(site, weights, rng, written, tables)
        return taken

    def _filters(self, weights: Weights, rng: Draws, written: set[int]) -> int:
        """Exchange the pixels' values of depthwise filters that were written, and say of how many layers."""
        sites = [each for each in depthwise_conv_sites(weights) if id(each.module.weight) in written and self.filters]
        for site in weights.each(sites):
            generator = rng.generator(site.weight_name, "Scrambled: filters")
            flat = shuffled_columns(site.filters.flatten(1), generator=generator)
            site.write(flat.reshape(site.filters.shape), "Scrambled: filters")
        return len(sites)

    def _matrices(self, weights: Weights, sites: list[AttentionSite], rng: Draws, written: set[int]) -> int:
        """Turn the other matrices that were written, and say how many."""
        taken = {id(site.module.weight) for site in depthwise_conv_sites(weights)}
        taken |= {id(weight) for site in sites for weight in _projections(site)}
        chosen = [each for each in _matrices(weights.model) if id(each) in written - taken and self.matrices]
        for weight in weights.each(chosen):
            value = weights.read(weight)
            generator = rng.generator(weights.names(weight)[0], "Scrambled: matrices")
            turned = turned_matrix(value.flatten(1), generator=generator).reshape(value.shape)
            weights.write(weight, turned.to(value.dtype), "Scrambled: matrices")
        return len(chosen)


def _turn(site: AttentionSite, left: str, right: str, generator: torch.Generator) -> None:
    """Turn queries and keys, or values and outputs."""
    first, second = getattr(site, left), getattr(site, right)
    across = left == "output"  # (heads, kv, D), where the others are (heads, D, k)
    turned, other = turned_heads(first.mT if across else first, second, generator=generator)
    setattr(site, left, turned.mT if across else turned)
    setattr(site, right, other)


def _turn_biases(site: AttentionSite, weights: Weights, rng: Draws, written: set[int]) -> int:
    """Turn the biases of queries and keys that were written, each head for itself."""
    taken = 0
    for name in PAIRS["query_key"]:
        bias = projection_bias(site.module, getattr(site.layout, name))
        if bias is not None and id(bias.tensor) in written:
            generator = rng.generator(site.name, f"Scrambled: {name} bias")
            turned = turned_rows(bias.get(weights), generator=generator)
            bias.set(weights, turned, "Scrambled: query_key")
            taken += 1
    return taken


def _shuffle_table(site: AttentionSite, weights: Weights, rng: Draws, written: set[int], tables: set[int]) -> int:
    """Let the entries of a relative-bias table that was written change places, once for all layers that share it."""
    found = relative_bias(site, weights)
    if found is None or id(found.table) in tables or id(found.table) not in written:
        return 0
    tables.add(id(found.table))
    generator = rng.generator(weights.names(found.table)[0], "Scrambled: relative positions")
    weights.write(found.table, shuffled_columns(found.get(weights), generator=generator), "Scrambled: query_key")
    return 1


def _projections(site: AttentionSite) -> Iterator[Tensor]:
    """Yield the parameters that hold the matrices of a layer."""
    for name in PARTS:
        projection = getattr(site.layout, name)
        yield from (part.weight for part in getattr(projection, "parts", (projection,)))


def _matrices(model: nn.Module) -> Iterator[Tensor]:
    """Yield every weight with two axes or more, but those of embeddings, also where another layer shares them."""
    modules = [module for _, module in named_plain_modules(model)]
    embeddings = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    for module in modules:
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() > 1 and id(weight) not in embeddings:
            yield weight
