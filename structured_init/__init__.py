"""Choose how a network is initialized, in one line, for any architecture, and see what it did."""

import lazy_loader

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
