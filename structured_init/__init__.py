"""Choose how a network is initialized, in one line, for any architecture, and see what it did."""

import lazy_loader

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _public(name)
    except AttributeError:
        meant = next((each for each in __all__ if each.lower() == name.replace("_", "")), None)
        if meant is None:
            raise
        raise ImportError(
            f"structured_init has no '{name}': did you mean '{meant}'? A preset is a name: initialize(model, '{name}')"
        ) from None


__version__ = "0.1.0"
