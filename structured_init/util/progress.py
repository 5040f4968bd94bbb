"""A bar that says how far a long initialization is, where somebody looks at it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
AFTER = 3.0  # seconds in which nothing is shown


def bar(items: Iterable[T], who: str) -> Iterable[T]:
    """Yield the items; a bar on stderr, in a terminal or a notebook, says which of them is reached.

    It appears after three seconds and is gone at the end. ``who`` is what is under way; where it is empty, nothing is
    shown.
    """
    watched = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
    return tqdm(items, desc=who, delay=AFTER, leave=False, disable=not (who and watched))
