"""A folder of the user's that hides a package of this project; standard library alone, so that nothing else is met."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("structured_init", "callbacks", "lightning_modules", "comparison")


def shadowing(names: Iterable[str] = PACKAGES) -> str | None:
    """Return one line about the first package of this project that another one hides; ``None`` where none is.

    Args:
        names: of the packages.
    """
    ours = Path(__file__).resolve().parents[2]
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module in sys.modules that was not imported in the usual way
            spec = None
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent != ours / name:
            other = origin or name
            return f"'{other}' hides this project's package '{name}': rename yours, or start from another folder"
    return None
