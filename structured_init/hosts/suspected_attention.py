"""Modules that may be attention and are of no known class: by their name, or by linear maps that could attend.

They are worth a forward pass, and are reported where nobody can run one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from structured_init.hosts.known import ATTENTION, described_attention
from structured_init.hosts.mlp import is_map, mlps
from structured_init.util.names import within
from structured_init.weights import Weights


def unknown_attention(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return name → class of every one of a model's modules with parameters that is called attention and is not known.

    A module is left out where it lies in a known one, or where one inside it, known or not, is the attention itself.
    """
    described: list[str] = []
    suspects: dict[str, str] = {}
    for name, module in modules.items():
        if described_attention(module) is not None:
            described.append(name)
        elif looks_like_attention(name, module) and next(module.parameters(), None) is not None:
            suspects[name] = type(module).__name__
    candidates = [*described, *suspects]
    return {
        name: kind
        for name, kind in suspects.items()
        if not any(name != outer and within(name, outer) for outer in described)
        and not any(name != inner and within(inner, name) for inner in candidates)
    }


def looks_like_attention(name: str, module: nn.Module) -> bool:
    """Tell whether a module is attention: it is known as such, or its name or that of its class says so.

    Elementary layers are none, whatever they are called: ``attn_norm``, ``attn_drop``, ``post_attention_layernorm``.
    They have no children, and are torch's own or hold no more than a weight, a bias or scales. Nor are torch's lists,
    dictionaries and sequences of layers: what is attention in them is one of those.
    """
    if ATTENTION.find(module) is not None:
        return True
    words = f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
    own = dict(module.named_parameters(recurse=False))
    scales = bool(own) and all(parameter.ndim <= 1 or key == "weight" for key, parameter in own.items())
    of_torch = type(module).__module__.startswith("torch.nn.modules.")
    elementary = next(module.children(), None) is None and (scales or of_torch)
    container = type(module).__module__ == "torch.nn.modules.container"
    return ("attn" in words or "attention" in words) and not (elementary or container)


def may_attend(weights: Weights, known: Iterable[str]) -> list[str]:
    """Name the modules whose maps, of no known attention and no MLP, could be queries, keys, values and an output.

    That takes two or more inside one module that holds no known attention, which read or write tokens of one width and
    are more than two square matrices of it. A classifier, merged patches or a lone projection are fewer.
    """
    attending = tuple(known)
    return weights.view.search_once("may attend", lambda: attending, lambda: _search(weights, attending))


def _search(weights: Weights, attending: tuple[str, ...]) -> list[str]:
    """Look for what may attend beside attention of these names."""
    own = [each for name in attending if name in weights.modules for each in weights.modules[name].parameters()]
    explained = {id(each) for mlp in mlps(weights.modules, own).values() for each in (*mlp.up, mlp.down)}
    for module in weights.modules.values():
        if isinstance(module, nn.Embedding) or _is_chain(module):
            explained |= {id(each) for each in module.parameters()}
    found = []
    for name, module in weights.modules.items():
        if not name or any(within(name, each) or within(each, name) for each in attending):
            continue
        if _could_attend([each for each in module.parameters() if is_map(each) and id(each) not in explained]):
            found.append(name)
    return [name for name in found if not any(within(other, name) and other != name for other in found)]


def _could_attend(maps: list[Tensor]) -> bool:
    """Say whether two maps or more are of one width, and together more than two square matrices of it."""
    sizes: dict[int, list[int]] = {}
    for weight in maps:
        for width in set(weight.shape[:2]):
            sizes.setdefault(width, []).append(weight.numel())
    return any(len(each) > 1 and sum(each) > 2 * width**2 for width, each in sizes.items())


def _is_chain(module: nn.Module) -> bool:
    """Say whether torch's own layers, two of them maps, follow each other: that is no attention, nor a map of one."""
    leaves = [each for each in module.modules() if type(each) is not nn.Sequential]
    plain = (type(each).__module__.startswith("torch.nn.modules.") and not [*each.children()] for each in leaves)
    return type(module) is nn.Sequential and sum(map(is_map, module.parameters())) > 1 and all(plain)
