"""Which classes are known, by class path, so that no host library is imported to look; and which sites are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, Generic, TypeVar

from torch import nn

from structured_init.log import Log
from structured_init.storage import quantized_layers
from structured_init.util.errors import StructuredInitError, shown

Layout = TypeVar("Layout")
Describe = Callable[[Any], Layout]
Where = str | list[str] | tuple[str, ...] | Callable[[Any], bool] | None


class Registry(Generic[Layout]):
    """A map from a module's class, or any of its bases, to a function that describes a module of it."""

    def __init__(self) -> None:
        self._describe: dict[str, Describe[Layout]] = {}
        self.version = 0  # grows with every class: what was found before may not be all

    def add(self, cls: type[nn.Module] | str, describe: Describe[Layout]) -> None:
        """Register a function for a class, given itself or as ``"package.module.Class"``; the last one wins."""
        if not isinstance(cls, type) and not (isinstance(cls, str) and "." in cls):
            raise StructuredInitError(f"a class is registered by itself or as 'package.module.Class', got {shown(cls)}")
        self._describe[cls if isinstance(cls, str) else class_path(cls)] = describe
        self.version += 1

    def adding(self, cls: type[nn.Module] | str) -> Callable[[Describe], Describe]:
        """Return a decorator that registers a function for a class."""

        def decorate(describe: Describe) -> Describe:
            self.add(cls, describe)
            return describe

        return decorate

    def foreign(self, module: nn.Module) -> bool:
        """Say whether a module's function was registered from outside of this library."""
        describe = self.find(module)
        home = getattr(getattr(describe, "__wrapped__", describe), "__module__", "") or ""
        return describe is not None and not home.startswith("structured_init.")

    def find(self, module: nn.Module) -> Describe[Layout] | None:
        """Return the function for the module's nearest registered class in its method resolution order."""
        for cls in type(module).__mro__:
            if (path := class_path(cls)) in self._describe:
                return self._describe[path]
        return None


def what_the_model_has(model: nn.Module) -> str:
    """Say which classes of a model hold parameters: the end of an error where none of them is known."""
    kinds = {type(part).__name__ for part in model.modules() if next(part.parameters(recurse=False), None) is not None}
    quantized = {type(part).__name__ for _, part in quantized_layers(model)}
    kinds |= {f"quantized {kind}, out of reach: initialize the model before it is quantized" for kind in quantized}
    return f"the model has {', '.join(sorted(kinds)) or 'no parameters'}"


def first_names(sites: Sequence[Any]) -> str:
    """Return the names of the first four sites, for a message."""
    return ", ".join(site.name for site in sites[:4]) + (", …" if len(sites) > 4 else "")


def class_path(cls: type) -> str:
    """Return ``"package.module.Class"``."""
    return f"{cls.__module__}.{cls.__qualname__}"


def selects(where: Where, name: str, site: object) -> bool:
    """Say whether ``where`` selects a site.

    Args:
        where: ``None`` for all; a shell pattern such as ``"blocks.[0-5].attn"`` or a list of them, matched against the
            name of the site, or of a module around it, whole or from a dot on; or a predicate of the site.
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
        raise StructuredInitError(f"where is a shell pattern of names, a list of them or a function, got {where!r}")
    around = list(accumulate(name.split("."), "{}.{}".format))  # a, a.b, a.b.c
    return any(fnmatchcase(f".{each}", f"*.{pattern}") for each in around for pattern in patterns)


def idle(where: Where, names: Collection[str]) -> list[str]:
    """Return the patterns of ``where`` that select none of some names, as a mistyped one does."""
    patterns = [where] if isinstance(where, str) else where if isinstance(where, list | tuple) else []
    return [pattern for pattern in patterns if not any(selects(pattern, name, None) for name in names)]


def warn_of_idle(weights: Log, where: Where, names: Collection[str], who: str, what: str) -> None:
    """Warn of every pattern that selects nothing, beside others that do."""
    for pattern in idle(where, names):
        weights.warn(f"{who}: where: '{pattern}' selects no {what}")
