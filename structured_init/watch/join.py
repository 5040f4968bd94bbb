"""Heads that are modules of their own, put together to the layer that they are; and a name for every layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from structured_init.layout import PARTS, JoinedProjection
from structured_init.names import plain_name
from structured_init.watch.assemble import Watched, common
from structured_init.watch.causal import agreed
from structured_init.watch.found import Evidence, FoundAttention, worst


def joined(layers: Iterable[tuple[Watched, FoundAttention]]) -> list[FoundAttention]:
    """Return layers, those whose outputs one linear map takes together, or that are added up, as one.

    Args:
        layers: what was watched, with what was found of it.
    """
    groups: dict[int, list[tuple[Watched, FoundAttention]]] = {}
    for watched, found in layers:
        key = id(watched.parts[0].linears[3]) if watched.parts else id(found)
        key = next((other for other, group in groups.items() if _added_up(watched, found, *group[0])), key)
        groups.setdefault(key, []).append((watched, found))
    return [_together([found for _, found in group]) for group in groups.values()]


def _added_up(one: Watched, first: FoundAttention, two: Watched, second: FoundAttention) -> bool:
    """Say whether two layers are heads of one: of the same tokens and the same kind, and their outputs are added."""
    if first.layout is None or second.layout is None:
        return False
    (q, k, _, o), (q_2, k_2, _, o_2) = one.parts[0].linears, two.parts[0].linears
    return (
        id(o) in o_2.beside
        and all(a.x.shape == b.x.shape and a.x.data_ptr() == b.x.data_ptr() for a, b in ((q, q_2), (k, k_2)))
        and _kind(first) == _kind(second)
    )


def _kind(found: FoundAttention) -> tuple[int, ...]:
    """Return what heads of one layer have in common."""
    query, key, value = found.layout.query, found.layout.key, found.layout.value
    return query.head_dim, value.head_dim, query.heads // key.heads, query.heads // value.heads


def _together(heads: list[FoundAttention]) -> FoundAttention:
    """Return the layer of several heads, or of several groups of them; without a layout where one has none."""
    if len(heads) == 1:
        return heads[0]
    name, calls = common([each.name for each in heads]), heads[0].calls
    reason = next((each.reason for each in heads if each.reason), None)
    if reason is None and len({(each.layout.query.head_dim, each.layout.value.head_dim) for each in heads}) > 1:
        reason = "its heads are of different sizes"
    if reason is None and len({each.layout.query.heads // each.layout.key.heads for each in heads}) > 1:
        reason = "some of its heads share keys, others do not"
    if reason is not None:
        return FoundAttention(name, None, None, reason, calls)
    matrices = {part: JoinedProjection(tuple(getattr(each.layout, part) for each in heads)) for part in PARTS}
    causal = agreed(each.layout.causal for each in heads)
    proofs = [each.evidence for each in heads]
    logits, outputs = worst(*(proof.logits for proof in proofs)), worst(*(proof.outputs for proof in proofs))
    proof = Evidence(logits, outputs, proofs[0].factor, proofs[0].how)
    layout = replace(heads[0].layout, **matrices, causal=causal)
    return replace(heads[0], name=name, layout=layout, evidence=proof)


def named(found: list[FoundAttention], model: nn.Module) -> list[FoundAttention]:
    """Return layers with a name of its own for each: of several in one module, that of their query's parameter.

    Names are what draws depend on, so two layers of one name would get the same numbers.
    """
    names = [each.name for each in found if each.layout is not None]
    parameters = {id(parameter): plain_name(name, model) for name, parameter in model.named_parameters()}
    result, used = [], set()
    for each in found:
        name = each.name
        if each.layout is not None:
            if names.count(name) > 1:
                name = parameters[id(each.layout.query.weight)].removesuffix(".weight")
            several = sum(other.startswith(f"{name}[") or other == name for other in used)
            name = f"{name}[{several}]" if several else name
            used.add(name)
        result.append(replace(each, name=name))
    return result
