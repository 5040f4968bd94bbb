"""What is shared, frozen or unused: one module in several layers, memory of two parameters, parameters that stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torch import Tensor

from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, first_names, folded
from structured_init.checks.measured import Measured
from structured_init.checks.scales import InLists
from structured_init.checks.weights import DRAWN
from structured_init.hosts.registry import selects
from structured_init.util.names import folded_name


def shared(measured: Measured) -> Iterator[Finding]:
    """Find one module, or one parameter, that several blocks of a list have in common: ``[block] * 12``."""
    lists = InLists(measured.model)
    places: dict[int, list[str]] = defaultdict(list)
    sizes: dict[int, int] = {}
    for name, module in measured.model.named_modules(remove_duplicate=False):
        places[id(module)].append(name)
        sizes[id(module)] = sum(each.numel() for each in module.parameters())
    for name, parameter in measured.model.named_parameters(remove_duplicate=False):
        places[id(parameter)].append(name)
        sizes[id(parameter)] = parameter.numel()
    told: list[str] = []
    for key, names in places.items():
        in_one_list = len({lists.folded(name, innermost=True) for name in names}) == 1
        inside = any(names[0].startswith(f"{outer}.") for outer in told)
        if len(names) > 1 and sizes[key] and in_one_list and not inside:
            told.append(names[0])
            numbers = f"{sizes[key]:,} numbers in place of {len(names) * sizes[key]:,}"
            yield Finding("shared", tuple(names), f"{folded_name(names)} are one: {numbers}")


def overlapping(measured: Measured) -> Iterator[Finding]:
    """Find parameters that are views of one memory, in part or as a whole, and no parameter of two names."""
    spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for name, parameter in measured.parameters.items():
        if not parameter.is_meta and type(parameter.data) is Tensor and parameter.numel():
            begin = parameter.storage_offset()
            reach = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
            spans[parameter.untyped_storage().data_ptr()].append((begin, begin + reach, name))
    for together in spans.values():
        end, before = -1, ""
        for begin, last, name in sorted(together):
            if begin <= end:
                yield Finding("shared", (before, name), f"{before} and {name} share memory, and are two parameters")
            end, before = max((end, before), (last, name))


def unused(measured: Measured) -> Iterator[Finding]:
    """Find parameters of more than one number that no output depends on."""
    sizes = {each.name: each.size for each in measured.records}
    names = [name for name in measured.unused if sizes[name] > 1 and not _selected(measured.may_be_unused, name)]
    if names:
        yield Finding("unused", tuple(names), f"{first_names(names)}: no output depends on it")


def frozen(measured: Measured) -> Iterator[Finding]:
    """Find draws that are not trained; tables that are computed are not."""
    found = []
    for each in measured.records:
        drawn = each.distribution.kind in DRAWN and each.size >= FEWEST and each.name not in measured.fixed
        if drawn and not each.trainable and not _selected(measured.may_be_frozen, each.name):
            found.append((each.name, "is drawn, and is not trained"))
    return folded("frozen", found)


def _selected(patterns: tuple[str, ...], name: str) -> bool:
    return bool(patterns) and selects(list(patterns), name, None)
