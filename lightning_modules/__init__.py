"""Tasks for Lightning: the public surface, whose names resolve in YAML without a path."""

import lazy_loader

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
