"""The one class of expected mistakes, and how a wrong name is answered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StructuredInitError(ValueError):
    """A mistake of configuration, data or checkpoint: its message is one line that says what would be right.

    Everything else that goes wrong is a bug and keeps its traceback.
    """


def nearest(name: str, valid: Iterable[str], limit: int = 8) -> str:
    """Return the end of an error message: the nearest valid name, or the first few valid ones.

    Args:
        name: what the user wrote.
        valid: the names that would have been right.
        limit: how many names to list when none is near.

    Returns:
        ``"did you mean 'x'?"`` or ``"choose from a, b, c, …"``.
    """
    names = sorted(set(valid))
    same_case = {each.lower(): each for each in reversed(names)}
    if name.lower() in same_case:
        return f"did you mean '{same_case[name.lower()]}'?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    close = close or difflib.get_close_matches(name.lower(), same_case, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{same_case.get(close[0], close[0]) if close[0] not in names else close[0]}'?"
    if not names:
        return "there is nothing to choose from"
    return f"choose from {', '.join(names[:limit])}{', …' if len(names) > limit else ''}"


def one_line(error: Exception) -> str:
    """Return the message of an expected mistake, also of one that a data worker has wrapped in its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Caught "):
        return lines[-1].partition("StructuredInitError: ")[2] or lines[-1]
    return " ".join(lines)
