"""Callbacks for Lightning: initialize a model, capture its attention and its filters, resume exactly."""

import lazy_loader

from structured_init.util.errors import with_extra

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_extra("lightning", __name__, _get)
