"""Callbacks for Lightning: initialize a model, capture its attention and its filters, resume exactly."""

import lazy_loader

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
