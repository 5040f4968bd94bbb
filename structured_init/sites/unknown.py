"""Attention by its name or that of its class: what nobody described is reported rather than passed over."""

from __future__ import annotations

from torch import nn

from structured_init.names import named_plain_modules
from structured_init.sites.registry import Registry

WAY_OUT = "describe it with structured_init.register_attention"


def unknown_attention(model: nn.Module, known: Registry) -> dict[str, str]:
    """Return name → class of every module with parameters that is called attention and is not known.

    A module is left out where it lies in a known one, or where one inside it, known or not, is the attention itself.
    """
    described: list[str] = []
    suspects: dict[str, str] = {}
    for name, module in named_plain_modules(model):
        if known.find(module) is not None:
            described.append(name)
        elif looks_like_attention(name, module, known) and next(module.parameters(), None) is not None:
            suspects[name] = type(module).__name__
    candidates = [*described, *suspects]
    return {
        name: kind
        for name, kind in suspects.items()
        if not any(_within(name, outer) for outer in described)
        and not any(_within(inner, name) for inner in candidates)
    }


def looks_like_attention(name: str, module: nn.Module, known: Registry) -> bool:
    """Tell whether a module is attention: it is known as such, or its name or that of its class says so.

    Elementary layers are none, whatever they are called: ``attn_norm``, ``attn_drop``, ``post_attention_layernorm``.

    Args:
        name: of the module in its model.
        module: of any class.
        known: classes that are attention whatever they are called.
    """
    if known.find(module) is not None:
        return True
    words = f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
    return ("attn" in words or "attention" in words) and not _is_elementary(module)


def _is_elementary(module: nn.Module) -> bool:
    """Tell whether a module without children is torch's own, or holds no more than a weight, a bias or scales."""
    if next(module.children(), None) is not None:
        return False
    own = dict(module.named_parameters(recurse=False))
    scales = own and all(parameter.ndim <= 1 or name == "weight" for name, parameter in own.items())
    return bool(scales) or type(module).__module__.startswith("torch.nn.modules.")


def _within(inner: str, outer: str) -> bool:
    return inner != outer and (outer == "" or inner.startswith(f"{outer}."))
