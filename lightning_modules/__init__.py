"""Tasks for Lightning: the public surface, whose names resolve in YAML without a path."""

from typing import Any

import lazy_loader

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a name; the library only then, so that the command can say first if another package hides it."""
    from structured_init.util.errors import with_extra

    return with_extra("lightning", __name__, _get)(name)
