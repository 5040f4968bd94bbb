"""Diagonals of W_q W_kᵀ and W_v W_o in every attention layer, and whether they stand out from chance."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from structured_init.analysis.products import weight_products
from structured_init.errors import StructuredInitError
from structured_init.names import folded_name
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite, attention_sites, left_unknown

LARGEST = 2**28  # numbers in the products of one layer, 2 GiB in float64
ALIGNED = 6.0  # standard errors of a mean diagonal, beyond which it is no chance


def product_diagonals(model: nn.Module, batch: object = None) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return layer → numbers, and a line for each layer that is left out, or whose attention is not known.

    The numbers are ``query_key_diagonal`` and ``query_key_off_diagonal_std`` (means over heads), ``query_key_z``, the
    diagonal in standard errors of chance, and ``query_key_largest_factor``, the largest magnitude in both factors; and
    the same of ``value_output``.

    Args:
        model: any module.
        batch: what it is called with; attention that no layout was written for is found on it.
    """
    weights = Weights(model, batch=batch)
    found: dict[str, dict[str, float]] = {}
    left: list[str] = []
    for site in attention_sites(weights):
        if site.num_heads * site.embed_dim**2 > LARGEST:
            left.append(f"{site.name}: products of {site.num_heads} heads {site.embed_dim} wide are left out")
            continue
        try:
            found[site.name] = dict(_numbers(site))
        except StructuredInitError as error:
            left.append(f"{site.name}: no products: {error}")
    unknown = left_unknown(weights)
    reasons: dict[str, list[str]] = {}
    for name, why in unknown.items():
        reasons.setdefault(why, []).append(name)
    why_not = f" ({weights.unwatched})" if weights.unwatched else ""
    left += [f"{folded_name(names)}: no products: {why}{why_not}" for why, names in reasons.items()]
    if not found and not unknown and weights.watched:
        left += [f"'{each.name}': no products: {each.reason}" for each in weights.watched if each.reason]
    return found, left


def aligned(numbers: dict[str, float]) -> list[str]:
    """Say which diagonals stand out from chance; nothing where none does."""
    signs = {"query_key": "W_q W_kᵀ", "value_output": "W_v W_o"}
    return [
        f"{sign} diagonal {numbers[f'{product}_diagonal']:+.2g}"
        for product, sign in signs.items()
        if abs(numbers[f"{product}_z"]) > ALIGNED
    ]


def _numbers(site: AttentionSite) -> Iterator[tuple[str, float]]:
    summary = weight_products(site).summary()
    factors = {"query_key": (site.query, site.key), "value_output": (site.value, site.output)}
    for product, both in factors.items():
        diagonal, spread = summary[f"{product}_diagonal"], summary[f"{product}_off_diagonal_std"]
        heads = len(diagonal) if isinstance(diagonal, list) else 1
        diagonal, spread = (sum(each) / len(each) if isinstance(each, list) else each for each in (diagonal, spread))
        error = spread / math.sqrt(heads * min(both[0].shape[1], both[1].shape[1]))
        yield f"{product}_diagonal", diagonal
        yield f"{product}_off_diagonal_std", spread
        yield f"{product}_z", diagonal / error if error else 0.0
        yield f"{product}_largest_factor", max(each.abs().max().item() for each in both)
