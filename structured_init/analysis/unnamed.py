"""Attention that neither its class nor its name gives away: one forward pass is watched where no map was seen."""

from __future__ import annotations

from torch import nn

from structured_init.errors import StructuredInitError
from structured_init.names import named_plain_modules
from structured_init.watch.discover import watch_model

UNCALLED = (nn.ParameterList, nn.ParameterDict, nn.ModuleList, nn.ModuleDict)


def watched_names(model: nn.Module, args: tuple, kwargs: dict) -> tuple[list[str], dict[str, str]]:
    """Return the modules whose attention was followed from queries to outputs, and what was refused: name → why.

    Args:
        model: any model whose weights are all here.
        args: what it takes, one or two samples; in order or by name, not both.
        kwargs: the same by name.

    Raises:
        StructuredInitError: the model cannot be watched, or fails.
    """
    if (args and kwargs) or any(tensor.is_meta or hasattr(tensor, "full_tensor") for tensor in model.parameters()):
        raise StructuredInitError(f"{type(model).__name__} cannot be watched")
    modules = dict(named_plain_modules(model))
    found, _, _ = watch_model(model, args or kwargs)
    names = [_called(each.name, modules) for each in found if each.layout is not None]
    return list(dict.fromkeys(names)), {each.name: each.reason for each in found if each.reason}


def _called(name: str, modules: dict[str, nn.Module]) -> str:
    """Return the innermost module around a name that has a forward pass."""
    while name and (name not in modules or isinstance(modules[name], UNCALLED)):
        name = name.rpartition(".")[0]
    return name
