"""Which classes of which host library are known: keyed by class path, so no host library is imported to look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import nn

from structured_init.errors import StructuredInitError
from structured_init.storage import quantized_layers

Layout = TypeVar("Layout")
Describe = Callable[[Any], Layout]


class Registry(Generic[Layout]):
    """A map from a module's class, or any of its bases, to a function that describes a module of it."""

    def __init__(self) -> None:
        self._describe: dict[str, Describe[Layout]] = {}

    def add(self, cls: type[nn.Module] | str, describe: Describe[Layout]) -> None:
        """Register a function for a class, given itself or as ``"package.module.Class"``; the last one wins.

        Raises:
            StructuredInitError: it is neither.
        """
        if not isinstance(cls, type) and not (isinstance(cls, str) and "." in cls):
            what = repr(cls) if isinstance(cls, str) else f"an object of class {type(cls).__name__}"
            raise StructuredInitError(f"a class is registered by itself or as 'package.module.Class', got {what}")
        self._describe[cls if isinstance(cls, str) else class_path(cls)] = describe

    def foreign(self, module: nn.Module) -> bool:
        """Say whether a module's function was registered from outside of this library."""
        describe = self.find(module)
        return describe is not None and not _home(describe).startswith("structured_init.")

    def find(self, module: nn.Module) -> Describe[Layout] | None:
        """Return the function for the module's nearest registered class in its method resolution order."""
        for cls in type(module).__mro__:
            if (path := class_path(cls)) in self._describe:
                return self._describe[path]
        return None

    def known(self) -> list[str]:
        """Return the registered class paths, sorted."""
        return sorted(self._describe)


def _home(describe: Callable) -> str:
    """Return the module that a function was written in."""
    return getattr(getattr(describe, "__wrapped__", describe), "__module__", "") or ""


def what_the_model_has(model: nn.Module) -> str:
    """Say which classes of a model hold parameters: the end of an error where none of them is known."""
    kinds = {type(part).__name__ for part in model.modules() if next(part.parameters(recurse=False), None) is not None}
    quantized = {type(part).__name__ for _, part in quantized_layers(model)}
    kinds |= {f"quantized {kind}, out of reach: initialize the model before it is quantized" for kind in quantized}
    return f"the model has {', '.join(sorted(kinds)) or 'no parameters'}"


def class_path(cls: type) -> str:
    """Return ``"package.module.Class"``."""
    return f"{cls.__module__}.{cls.__qualname__}"
