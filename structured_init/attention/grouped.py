"""Heads that share a key: one W_k for several targets and a W_q for each, with as little lost as can be.

Letters: D embed_dim, k head_dim, G heads that share a key. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.linalg import add_gram, gram, leading_eigenvectors

Factors = tuple[Float[Tensor, "D rank"], Float[Tensor, "rank D"]]


def query_key_factors(
    targets: Callable[[], Iterable[Float[Tensor, "D D"]]],
    heads: int,
    group: int,
    rank: int,
    split: Callable[[Tensor], Factors],
) -> tuple[list[Tensor], list[Tensor]]:
    """Return W_q of every head and W_k of every group of heads, each (D, k), for one target per head.

    Args:
        targets: gives the heads' targets in their order, the same each time it is called. They are drawn twice where
            heads share a key, so that one of them is held at a time.
        heads: H.
        group: G, how many of them share a key; with 1 every head has the factors that ``split`` finds.
        rank: k.
        split: factors one target into (D, k) and (k, D).
    """
    once = iter(targets())
    if group == 1:
        queries, keys = [], []
        for target in once:
            left, right = split(target)
            queries.append(left)
            keys.append(right.mT)
        return queries, keys
    again, queries, keys = iter(targets()), [], []
    for _ in range(0, heads, group):
        shared, key = share_key(islice(once, group), islice(again, group), rank)
        queries.extend(shared)
        keys.append(key)
    return queries, keys


def share_key(
    once: Iterable[Float[Tensor, "D D"]], again: Iterable[Float[Tensor, "D D"]], rank: int
) -> tuple[Float[Tensor, "group D rank"], Float[Tensor, "D rank"]]:
    """Return G W_q and one W_k with W_q W_kᵀ = M_h B Bᵀ, B the k largest right singular vectors of [M_1; …; M_G].

    No other W_k leaves less of Σ_h ‖M_h − W_q W_kᵀ‖², and no head is preferred. B are the largest eigenvectors of
    Σ_h M_hᵀ M_h, so the stacked matrix is never formed; what squaring costs is said in :func:`truncated_svd`. Each
    column of B has its entry of largest modulus positive.

    Args:
        once: M_h, (D, D), for the sum.
        again: the same once more, for the queries.
        rank: k; where it is more than D, zeros fill up.
    """
    total: Tensor | None = None
    for target in once:
        total = gram(target) if total is None else add_gram(total, target)
        del target  # before the next is drawn: two matrices are held, the sum and one target
    assert total is not None, "a group has at least one head"
    right = leading_eigenvectors(total, rank)
    del total
    right *= right.gather(0, right.abs().argmax(dim=0, keepdim=True)).sign()
    # A loop's variable would hold one target while the next is drawn.
    left = torch.stack(list(map(lambda target: target @ right, again)))
    singular = left.square().sum(dim=(0, 1)).sqrt()
    left /= singular.where(singular > 0, 1)
    return halves(left, singular, right, rank)


def halves(
    left: Float[Tensor, "group D r"], singular: Float[Tensor, " r"], right: Float[Tensor, "E r"], width: int
) -> tuple[Float[Tensor, "group D width"], Float[Tensor, "E width"]]:
    """Split A diag(σ) Bᵀ, A being G blocks of rows, into W_q = A_h √σ ⁴√G of each head and W_k = B √σ / ⁴√G.

    ⁴√G makes them the same as one head's own where the G heads are equal.

    Args:
        left: A_h.
        singular: σ.
        right: B.
        width: columns of W_q and W_k: the first ones of A and B, or zeros behind them where there are fewer.
    """
    size = min(width, singular.numel())
    root, balance = singular[:size].sqrt(), left.shape[0] ** 0.25
    padding = (0, width - size)
    *queries, key = (torch.nn.functional.pad(side[:, :size] * root, padding) for side in (*left, right))
    return balance * torch.stack(queries), key / balance
