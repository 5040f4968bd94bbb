"""Heads that share a key: one W_k for several targets and a W_q for each, with as little lost as can be.

Letters: D embed_dim, k head_dim, G heads that share a key. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.layout import AttentionLayout
from structured_init.linalg import add_gram, gram, leading_eigenvectors, random_orthogonal

Factors = tuple[Float[Tensor, "D rank"], Float[Tensor, "rank D"]]
Shared = tuple[Float[Tensor, "group D rank"], Float[Tensor, "D rank"]]  # W_q of the heads that share a key, and W_k
Draw = Callable[[torch.Generator], Float[Tensor, "D D"]]


def query_key_jobs(
    draw: Draw, generator: torch.Generator, heads: int, group: int, rank: int, split: Callable[[Tensor], Factors]
) -> Iterator[Callable[[], Shared]]:
    """Yield a job for each key of a layer, which finds W_k and the W_q of the heads that share it.

    The jobs are independent: with heads of their own keys the target is drawn here; a job of heads that share a key
    draws its targets itself, from a copy of the generator, so that one target is held at a time.

    Args:
        draw: gives the next head's target.
        generator: what it draws from.
        heads: H.
        group: G, how many of them share a key; with 1 every head has the factors that ``split`` finds.
        rank: k.
        split: factors one target into (D, k) and (k, D).
    """
    if group == 1:  # no loop, whose variable would hold one target while the next is drawn
        yield from map(lambda _: partial(_own_key, draw(generator), split), range(heads))
        return
    for _ in range(0, heads, group):
        shared = _SharedKey(draw, _copy(generator), group, rank)
        yield shared
        generator = shared.after()


def gather(found: Iterator[Shared], layout: AttentionLayout, turns: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return W_q (H, D, k) and W_k (Hkv, D, k) of the next jobs' results, in the precision in which they are planned.

    Args:
        found: what the jobs of the layer and of later ones return.
        layout: of the layer.
        turns: draws a rotation inside each key head and those that share it, where the host turns pairs of coordinates.
    """
    query, key = (
        torch.empty(each.heads, each.width, each.head_dim, dtype=torch.promote_types(each.weight.dtype, torch.float32))
        for each in (layout.query, layout.key)
    )
    for queries, own in zip(query.chunk(len(key)), key, strict=True):
        left, right = next(found)
        if turns is not None:
            turn = random_orthogonal(*right.shape[-1:] * 2, generator=turns).to(right.dtype)
            left, right = left @ turn, right @ turn
        queries.copy_(left)
        own.copy_(right)
        del left, right  # before the next are found
    return query, key


def _own_key(target: Tensor, split: Callable[[Tensor], Factors]) -> Shared:
    left, right = split(target)
    return left[None], right.mT


class _SharedKey:
    """The job of one group: its targets are drawn twice, for the sum and for the queries."""

    def __init__(self, draw: Draw, generator: torch.Generator, group: int, rank: int) -> None:
        self.draw, self.group, self.rank = draw, group, rank
        self.first, self.second = generator, _copy(generator)
        self.begin, self.drawn = _copy(generator), False

    def __call__(self) -> Shared:
        return share_key(self._once(), self._targets(self.second), self.rank)

    def after(self) -> torch.Generator:
        """Return a generator at the next group's first target: by this job, where it is as far, else by drawing."""
        if self.drawn:
            return self.first
        for _ in range(self.group):
            self.draw(self.begin)
        return self.begin

    def _targets(self, generator: torch.Generator) -> Iterator[Tensor]:
        return map(lambda _: self.draw(generator), range(self.group))

    def _once(self) -> Iterator[Tensor]:
        yield from self._targets(self.first)
        self.drawn = True


def _copy(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


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
