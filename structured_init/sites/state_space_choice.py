"""Which state-space layers of a model are meant, and one line that says what it has where there is none."""

from __future__ import annotations

from torch import nn

from structured_init.errors import StructuredInitError
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.registry import what_the_model_has
from structured_init.sites.select import Where, selects
from structured_init.sites.state_space import STATE_SPACE, WAY_OUT, StateSpaceSite, state_space_sites

REASONS = {  # class → why its parameters are not what a site has
    "ZambaMambaMixer": "its heads have matrices of their own, in parameters of three axes",
    "OlmoHybridGatedDeltaNet": "queries, keys and values have a short convolution each",
    "KimiLinearDeltaAttention": "every channel of a key has a decay of its own that depends on the token",
    "BailingHybridDeltaAttention": "every channel of a key has a decay of its own that depends on the token",
    "Glm5NextTextLinearAttention": "every channel of a key has a decay of its own that depends on the token",
}


def required_state_space_sites(
    weights: Weights, where: Where, layers: list[int] | None, who: str
) -> list[StateSpaceSite]:
    """Return the chosen sites, and raise one line that says what the model has where there is none.

    Args:
        weights: the overlay.
        where: which of them, by name.
        layers: which of them, by their number among the model's state-space layers, from 0; negative from the end.
        who: asks, for the messages.

    Raises:
        StructuredInitError: no state-space layer of a known class, none selected, a number out of range, or a layer
            whose heads cannot be shared out among its groups.
    """
    everywhere = state_space_sites(weights)
    unknown = unknown_state_spaces(weights.model)
    if not everywhere:
        kinds = sorted(set(unknown.values()))
        has = f"the model has {', '.join(kinds)}" if kinds else what_the_model_has(weights.model)
        has = f"{has}: {WAY_OUT}"
        if any(kind in REASONS for kind in kinds):
            has = "; ".join(map(why_unknown, kinds))
        raise StructuredInitError(f"{who} found no state-space layer that it recognizes; {has}")
    count = len(everywhere)
    if wrong := [layer for layer in layers or [] if not -count <= layer < count]:
        raise StructuredInitError(
            f"{who}: layers={layers} names layer {wrong[0]}, but the model's {count} state-space layers are numbered "
            f"0 to {count - 1}"
        )
    numbers = range(count) if layers is None else {layer % count for layer in layers}
    sites = [site for number, site in enumerate(everywhere) if number in numbers and selects(where, site.name, site)]
    if not sites:
        names = ", ".join(site.name for site in everywhere[:4]) + (", …" if count > 4 else "")
        chosen = f"where={where!r}" + (f" with layers={layers}" if layers is not None else "")
        raise StructuredInitError(f"{who}: {chosen} selects none of the {count} state-space layers ({names})")
    for site in sites:
        refuse_uneven_groups(site, who)
    for name, kind in unknown.items():
        if not callable(where) and selects(where, name, None):
            weights.skip(name, why_unknown(kind))
    return sites


def refuse_uneven_groups(site: StateSpaceSite, who: str) -> None:
    """Refuse a layer that no host can run: each group of B and C serves equally many heads.

    Raises:
        StructuredInitError: the number of groups does not divide the number of heads.
    """
    heads, groups = site.num_heads, site.num_groups
    if heads % groups:
        *most, last = (number for number in range(1, heads + 1) if heads % number == 0)
        valid = f"{', '.join(map(str, most))} or {last}" if most else str(last)
        raise StructuredInitError(
            f"{who}: '{site.name}' has {groups} groups of B and C for {heads} head{'s' * (heads > 1)}, and cannot"
            f" run: the number of groups must divide the number of heads, so it must be {valid}"
        )


def unknown_state_spaces(model: nn.Module) -> dict[str, str]:
    """Return name → class of what keeps an ``A_log``, as selective state-space layers do, and is of no known class."""
    return {
        name: type(module).__name__
        for name, module in named_plain_modules(model)
        if STATE_SPACE.find(module) is None and "A_log" in module._parameters
    }


def why_unknown(kind: str) -> str:
    """Return one line on a class of state-space layers that is not known."""
    return f"{kind} has no layout: {REASONS[kind]}" if kind in REASONS else f"{kind} is not known: {WAY_OUT}"
