"""The text ``name{argument=value,…}``: a configuration of ``configs/init`` with other arguments of its initializer."""

from __future__ import annotations

import re

from structured_init.errors import StructuredInitError

PREFIX = "--init.initializer.init_args."


def split_overrides(text: str) -> tuple[str, dict[str, str]]:
    """Return the name before the braces, and the arguments inside them as text.

    Args:
        text: ``impulse``, or ``impulse{kernel_size=5,offsets=[[0, 1]]}``.

    Raises:
        StructuredInitError: the braces hold something else than ``argument=value``, or are not closed.
    """
    found = re.fullmatch(r"([^{]*)(?:\{(.*)\})?", text)
    if not found:
        raise StructuredInitError(f"cannot read '{text}': write name or name{{argument=value}}")
    parts = split_outside_brackets(found[2] or "")
    return found[1].strip(), dict(_override(part, text) for part in parts)


def override_words(overrides: dict[str, str]) -> list[str]:
    """Return the part of a command line that replaces arguments of the initializer."""
    return [f"{PREFIX}{key}={value}" for key, value in overrides.items()]


def split_outside_brackets(text: str) -> list[str]:
    """Split at the commas that stand in no bracket; leave out what is empty.

    Raises:
        StructuredInitError: a bracket is not closed, or was never opened.
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise StructuredInitError(f"the brackets in '{text}' do not match")
    return [part.strip() for part in parts if part.strip()]


def _override(part: str, entry: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals or not re.fullmatch(r"[\w.]+", key.strip()):
        raise StructuredInitError(f"cannot read '{part}' in '{entry}': write argument=value")
    return key.strip(), value.strip()
