"""Where each head looks: the offsets that are asked for, those of a host of one's own choice, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

from structured_init.errors import StructuredInitError

Offset = tuple[int, int]  # rows above, columns to the left; in a sequence (0, tokens before)
Asked = int | Sequence[int] | None


def chosen_offsets(
    asked: Sequence[Asked] | None,
    name: str,
    heads: int,
    *,
    size: tuple[int, int],
    causal: bool,
) -> list[Offset | None]:
    """Return the offset of every head of a layer, ``None`` for those that are left to the host.

    Without any asked for, heads look 1, 2, 3, … tokens back; where attention goes both ways 1 back, 1 ahead, 2 back, …;
    and on a grid left, right, up, down, at distance 1, then 2, …. Heads for which the tokens do not suffice are left.

    Args:
        asked: one for each of the first heads: tokens (or columns) before, negative for behind; a pair of rows and
            columns on a grid; or ``None``.
        name: of the layer, for errors.
        heads: H.
        size: rows and columns of the tokens, (1, tokens) of a sequence.
        causal: whether no token sees those behind it.

    Raises:
        StructuredInitError: more offsets than heads; one that leads outside, behind under a causal mask, or is no
            whole number or pair.
    """
    if asked is None:
        offsets: list[Offset | None] = list(islice(_default(size, causal), heads))
        return offsets + [None] * (heads - len(offsets))
    if len(asked) > heads:
        raise StructuredInitError(f"PreviousToken: {len(asked)} offsets for the {heads} heads of '{name}'")
    offsets = [None if each is None else _pair(each) for each in asked]
    for offset in offsets:
        if offset is not None:
            _check(offset, name, size, causal)
    return offsets + [None] * (heads - len(offsets))


def check_kind(asked: Sequence[Asked] | None) -> None:
    """Raise one line where an offset is neither a whole number nor a pair of them nor ``None``, or is the token itself.

    Raises:
        StructuredInitError: that line; also where they are no list.
    """
    if asked is not None and not isinstance(asked, list | tuple):
        raise StructuredInitError(
            f"PreviousToken: offsets is a list, with one for each of the first heads, such as [1, 2], got {asked!r}"
        )
    for each in asked or ():
        if each is not None and not any(_pair(each)):
            raise StructuredInitError(
                f"PreviousToken: offset {each!r} is the token itself, not an earlier one: use null to leave a head"
                " as it is"
            )
    if asked is not None and all(each is None for each in asked):
        raise StructuredInitError("PreviousToken: every offset is null, so no head is written: give one, such as [1]")


def spoken(offset: Offset) -> str:
    """An offset as the user would write it."""
    return str(offset[1]) if not offset[0] else f"[{offset[0]}, {offset[1]}]"


def _pair(each: Asked) -> Offset:
    if isinstance(each, int) and not isinstance(each, bool):
        return 0, each
    if isinstance(each, list | tuple) and len(each) == 2 and all(isinstance(part, int) for part in each):
        return each[0], each[1]
    raise StructuredInitError(
        f"PreviousToken: offsets must be numbers of tokens such as 1, [rows, columns] on a grid, or null, got {each!r}"
    )


def _check(offset: Offset, name: str, size: tuple[int, int], causal: bool) -> None:
    rows, columns = size
    if offset[0] and rows == 1:
        raise StructuredInitError(
            f"PreviousToken: offset {spoken(offset)} points to another row, but '{name}' processes a sequence"
        )
    if causal and offset[1] < 0:
        raise StructuredInitError(
            f"PreviousToken: offset {spoken(offset)} looks ahead, but '{name}' is causal:"
            " use positive offsets, which count tokens back"
        )
    if abs(offset[0]) >= rows or abs(offset[1]) >= columns:
        tokens = f"{columns} tokens" if rows == 1 else f"{rows}×{columns} tokens"
        raise StructuredInitError(
            f"PreviousToken: offset {spoken(offset)} lies outside of the {tokens} that '{name}' sees"
        )


def _default(size: tuple[int, int], causal: bool) -> Iterator[Offset]:
    rows, columns = size
    for distance in count(1):
        ring = [(0, distance)] if causal else [(0, distance), (0, -distance)]
        ring = [] if distance >= columns else ring
        ring += [(distance, 0), (-distance, 0)] if distance < rows else []
        if not ring:
            return
        yield from ring
