"""Choose how a network is initialized, in one line, for any architecture, and see what it did."""

from pathlib import Path

import lazy_loader

from structured_init.util.errors import no_such_name

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
*_, _analysis = lazy_loader.attach_stub(f"{__name__}.analysis", str(Path(__file__).parent / "analysis" / "__init__.py"))


def __getattr__(name: str) -> object:
    try:
        return _public(name)
    except AttributeError as error:
        if name in _analysis:
            raise no_such_name(__name__, name, error, home="structured_init.analysis") from None
        preset = f" A preset is a name: initialize(model, '{name}')" if name.islower() else ""
        raise no_such_name(__name__, name, error, preset) from None


__version__ = "0.1.0"
