"""``where=``: choosing among towers and layers by name pattern or predicate."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from structured_init.errors import StructuredInitError

Where = str | list[str] | Callable[[Any], bool] | None


def selects(where: Where, name: str, site: object) -> bool:
    """Say whether ``where`` selects a site.

    Args:
        where: ``None`` for all; a shell pattern such as ``"blocks.[0-5].attn"`` or a list of them, matched against the
            whole name or the end of it from a dot on; or a predicate of the site.
        name: the site's name.
        site: what a predicate is given.

    Raises:
        StructuredInitError: ``where`` is none of these.
    """
    if where is None:
        return True
    if callable(where):
        return bool(where(site))
    patterns = [where] if isinstance(where, str) else where
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise StructuredInitError(f"where is a name pattern, a list of them or a function of a site, got {where!r}")
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}") for pattern in patterns)
