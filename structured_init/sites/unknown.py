"""Attention that nobody described: found by its name or that of its class, to be reported rather than passed over."""

from __future__ import annotations

from torch import nn

from structured_init.names import named_plain_modules
from structured_init.sites.registry import Registry

NAMES = frozenset({"attn", "attention", "self_attn", "self_attention", "cross_attn", "cross_attention"})
WAY_OUT = "describe it with structured_init.register_attention"


def unknown_attention(model: nn.Module, known: Registry) -> dict[str, str]:
    """Return name → class of every module with parameters that is called attention and is not known.

    A module is left out where it lies in a known one, or where one inside it, known or not, is the attention itself.
    """
    described, suspects = [], {}
    for name, module in named_plain_modules(model):
        kind = type(module).__name__
        if known.find(module) is not None:
            described.append(name)
        elif _called_attention(name, kind) and next(module.parameters(), None) is not None:
            suspects[name] = kind
    candidates = [*described, *suspects]
    return {
        name: kind
        for name, kind in suspects.items()
        if not any(_within(name, outer) for outer in described)
        and not any(_within(inner, name) for inner in candidates)
    }


def _called_attention(name: str, kind: str) -> bool:
    return name.rpartition(".")[2] in NAMES or "attention" in kind.lower() or "attn" in kind.lower()


def _within(inner: str, outer: str) -> bool:
    return inner != outer and (outer == "" or inner.startswith(f"{outer}."))
