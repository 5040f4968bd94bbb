"""Whose tokens an attention layer looks at."""

from __future__ import annotations

from torch import Tensor

from structured_init.watch import codes
from structured_init.watch.found import NoLayout
from structured_init.watch.records import Linear, Other
from structured_init.watch.watch import WatchMode


def is_cross(seen: WatchMode, query: Linear, key: Linear) -> bool:
    """Say whether keys come from other tokens than queries.

    They do not where the queries' tokens are among the keys', or where the keys' were made from those, by a
    convolution that reduces them or a smaller linear map.

    Raises:
        NoLayout: the queries themselves were made of the keys' tokens by two linear maps, one after the other.
    """
    if key.x is query.x or (key.x.shape == query.x.shape and key.x.data_ptr() == query.x.data_ptr()):
        return False
    keys = _line(seen, key)
    if any(_holds(one.x, query.x) for one in keys):
        return False
    for first in _line(seen, query)[1:]:
        if isinstance(first, Linear) and any(one is not first and _holds(one.x, first.x) for one in keys):
            raise NoLayout(
                f"its queries are made by two linear maps, one after the other ('{first.module}', '{query.module}')"
            )
    return True


def _line(seen: WatchMode, linear: Linear) -> list[Linear | Other]:
    """Return a linear map, what made its input, and what made the input of that."""
    line: list[Linear | Other] = [linear]
    while len(line) < 3 and (above := _above(seen, line[-1])) is not None:
        line.append(above)
    return line


def _holds(tokens: Tensor, some: Tensor) -> bool:
    """Say whether some tokens are among others of the same width."""
    return tokens.shape[-1] == some.shape[-1] and _rows(some) <= _rows(tokens)


def _above(seen: WatchMode, linear: Linear | Other) -> Linear | Other | None:
    """Return what made the input of a linear map, where one source did."""
    if linear.taken is None:
        return None
    numbers = codes.source(linear.taken).unique().tolist()
    source = seen.sources[numbers[0]] if len(numbers) == 1 else None
    return source if isinstance(source, Linear | Other) else None


def _rows(x: Tensor) -> set[tuple[float, ...]]:
    """Return the tokens as a set; a few of their numbers tell them apart."""
    return set(map(tuple, x.reshape(-1, x.shape[-1])[:, :4].tolist()))
