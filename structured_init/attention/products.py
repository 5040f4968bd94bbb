"""The products of attention, factored: W_q W_kᵀ of every head, W_v W_o of every layer.

Heads that share a key get one W_k for several targets and a W_q for each, with as little lost as can be.

Letters: D and E widths of tokens, k head_dim, H heads, Hkv key–value heads, G heads that share a key. Row vectors:
q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import AttentionLayout
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import add_gram, gram, leading_eigenvectors, random_orthogonal

Factors = tuple[Float[Tensor, "D rank"], Float[Tensor, "rank E"]]
Shared = tuple[Float[Tensor, "group D rank"], Float[Tensor, "E rank"]]  # W_q of the heads that share a key, and W_k
Draw = Callable[[torch.Generator], Float[Tensor, "D D"]]


def in_heads(left: Tensor, right: Tensor, layout: AttentionLayout) -> tuple[Tensor, Tensor]:
    """Return W_v (Hkv, D, k) and W_o (H, k, D) of factors that hold all heads side by side."""
    value, output = layout.value, layout.output
    group = output.heads // value.heads  # heads that share a value share its output, each a part of it
    values = left.reshape(value.width, value.heads, value.head_dim).movedim(1, 0)
    outputs = right.reshape(value.heads, value.head_dim, output.width)
    return values, outputs if group == 1 else (outputs / group).repeat_interleave(group, dim=0)


def square_width(site: AttentionSite, product: str, rows: int, columns: int) -> int:
    """Return the width of tokens that a product maps to itself, or raise one line where it is not square."""
    if rows != columns:
        raise StructuredInitError(
            f"Mimetic: the {product} product of '{site.name}' maps width {rows} to {columns}, but αZ + βI must be"
            " square"
        )
    return rows


def by_key(
    site: AttentionSite, draw: Draw, generator: torch.Generator, split: Callable[[Tensor], Factors]
) -> Iterator[Shared]:
    """Yield for each key of a layer the W_q of the heads that share it, and W_k.

    Heads that share a key have their targets drawn twice, from a copy of the generator, so that one target is held at a
    time.
    """
    group = site.num_heads // site.num_key_value_heads
    for _ in range(site.num_key_value_heads):
        if group == 1:
            yield _own_key(split(draw(generator)))  # nothing here holds the factors while the next are drawn
        else:
            again = generator.clone_state()
            once = map(lambda _: draw(generator), range(group))
            yield share_key(once, map(lambda _, again=again: draw(again), range(group)), site.head_dim)


def _own_key(factors: Factors) -> Shared:
    left, right = factors
    return left[None], right.mT


def all_keys(
    factors: Iterator[Shared], layout: AttentionLayout, turns: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return W_q (H, D, k) and W_k (Hkv, D, k) of a layer, in the precision in which they are planned.

    ``factors`` are those of each key, see :func:`by_key`. ``turns`` draws a rotation inside each key head and those
    that share it.
    """
    query, key = (
        torch.empty(each.heads, each.width, each.head_dim, dtype=torch.promote_types(each.weight.dtype, torch.float32))
        for each in (layout.query, layout.key)
    )
    for queries, own in zip(query.chunk(len(key)), key, strict=True):
        left, right = next(factors)
        if turns is not None:
            turn = random_orthogonal(*right.shape[-1:] * 2, generator=turns).to(right.dtype)
            left, right = left @ turn, right @ turn
        queries.copy_(left)
        own.copy_(right)
        del left, right  # before the next are found
    return query, key


def share_key(
    once: Iterable[Float[Tensor, "D D"]], again: Iterable[Float[Tensor, "D D"]], rank: int
) -> tuple[Float[Tensor, "group D rank"], Float[Tensor, "D rank"]]:
    """Return G W_q and one W_k with W_q W_kᵀ = M_h B Bᵀ, B the k largest right singular vectors of [M_1; …; M_G].

    No other W_k leaves less of Σ_h ‖M_h − W_q W_kᵀ‖², and no head is preferred. B are the largest eigenvectors of
    Σ_h M_hᵀ M_h, so the stacked matrix is never formed; what squaring costs is said in :func:`truncated_svd`. Each
    column of B has its entry of largest modulus positive; where k is more than D, zeros fill up. The targets are drawn
    ``once`` for the sum, and ``again`` for the queries.
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

    ⁴√G makes them one head's own where the G heads are equal. Where σ are fewer than ``width``, zeros fill up.
    """
    size = min(width, singular.numel())
    root, balance = singular[:size].sqrt(), left.shape[0] ** 0.25
    padding = (0, width - size)
    *queries, key = (torch.nn.functional.pad(side[:, :size] * root, padding) for side in (*left, right))
    return balance * torch.stack(queries), key / balance
