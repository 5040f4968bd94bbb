"""Whose tokens an attention layer looks at."""

from __future__ import annotations

from torch import Tensor

from structured_init.watch import codes
from structured_init.watch.records import Linear, Other
from structured_init.watch.watch import WatchMode


def is_cross(seen: WatchMode, query: Linear, key: Linear) -> bool:
    """Say whether keys come from other tokens than queries.

    They do not where the queries' tokens are among the keys', or where the keys' were made from those, by a
    convolution that reduces them or a smaller linear map.
    """
    if key.x is query.x or (key.x.shape == query.x.shape and key.x.data_ptr() == query.x.data_ptr()):
        return False
    asked = _rows(query.x)
    for _ in range(3):
        if key is None:
            return True
        if key.x.shape[-1] == query.x.shape[-1] and asked <= _rows(key.x):
            return False
        key = _above(seen, key)
    return True


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
