"""Which layers an initializer of sequences writes: the first ones of every tower, such as an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from structured_init.errors import StructuredInitError
from structured_init.plan import Weights
from structured_init.sites.attention import ATTENTION, AttentionSite, attention_sites, required_attention_sites
from structured_init.sites.select import Where
from structured_init.sites.watched import check_sites

Prepared = TypeVar("Prepared")
Layers = list[AttentionSite]


def towers(who: str, weights: Weights, where: Where) -> list[Layers]:
    """Return the attention layers that are selected, tower by tower.

    Raises:
        StructuredInitError: there are none; a layout is not what the model computes.
    """
    sites = attention_sites(weights, where)
    if not sites:
        required_attention_sites(weights, where, who)
    check_sites(weights, sites, ATTENTION)
    found: dict[str, Layers] = {}
    for site in sites:
        found.setdefault(tower_of(site.name), []).append(site)
    return list(found.values())


def tower_of(name: str) -> str:
    """The name of a layer up to its first number: that of the tower that it is in."""
    parts = name.split(".")
    return ".".join(parts[: next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))])


def those_that_can(
    who: str,
    weights: Weights,
    groups: Sequence[Layers],
    prepare: Callable[[Layers], Prepared],
    *,
    every: bool = False,
) -> list[Prepared]:
    """Prepare each group of layers, with nothing written yet; those that cannot are skipped, unless none can.

    Args:
        who: the initializer, for errors.
        weights: takes note of what is skipped, and why.
        groups: layers that are written together.
        prepare: raises a ``StructuredInitError`` for a group that cannot.
        every: refuse where any cannot, as where the user has named the layers.

    Raises:
        StructuredInitError: that of the first group that cannot.
    """
    done, taken, refusals = [], [], {}
    for layers in groups:
        try:
            done.append(prepare(layers))
            taken += [site.name for site in layers]
        except StructuredInitError as refusal:
            # What looks at offsets speaks as PreviousToken, also where it is a part of another initializer.
            refusals[layers[0].name] = str(refusal).removeprefix("PreviousToken: ").removeprefix(f"{who}: ")
    if refusals and (every or not done):
        raise StructuredInitError(f"{who}: {next(iter(refusals.values()))}")
    for name, why in refusals.items():
        weights.skip(name, why)
    weights.sought(taken, [site.name for layers in groups for site in layers])
    return done
