"""MLPs by their name or that of their class: what is called one and is not known is reported, not passed over."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.conv import _ConvNd

from structured_init.names import named_plain_modules
from structured_init.sites.mlp_rule import maps_of, there_and_back, within
from structured_init.sites.registry import Registry

NAMES = ("mlp", "ffn", "feed_forward", "feedforward")


def called_mlps(model: nn.Module, known: Registry, found: Iterable[str] = ()) -> dict[str, nn.Module]:
    """Return by its name every innermost module that is called an MLP and is, holds and lies in no known one.

    Args:
        model: any model.
        known: classes that are known as MLPs.
        found: names of MLPs that are known otherwise than by their class.
    """
    sites, suspects = list(found), {}
    for name, module in named_plain_modules(model):
        if known.find(module) is not None:
            sites.append(name)
        elif _called_mlp(name, type(module).__name__) and next(module.parameters(), None) is not None:
            suspects[name] = module
    return {
        name: module
        for name, module in suspects.items()
        if not any(within(name, site) or within(site, name) for site in sites)
        and not any(other != name and within(other, name) for other in suspects)
    }


def why_none(module: nn.Module) -> str | None:
    """Say why what is called an MLP cannot be one that an initializer writes to; ``None`` where it may be."""
    matrices = (each for each in module.modules() if not isinstance(each, _ConvNd))
    if any(weight is not None and weight.ndim > 2 for each in matrices for weight in each._parameters.values()):
        return "keeps its experts in weights of three axes"
    return None if there_and_back(maps_of(module)) else "holds no linear map to a hidden width and one back"


def _called_mlp(name: str, kind: str) -> bool:
    return name.rpartition(".")[2] in NAMES or any(word in kind.lower() for word in ("mlp", "ffn", "feedforward"))
