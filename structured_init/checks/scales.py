"""Compare the scales of parameters: of two draws, with another model's, or with a standard recipe's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from structured_init.checks.distribution import FEWEST, Sample
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.records import Record
from structured_init.checks.references import num_layers
from structured_init.checks.words import describe_kind
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.names import folded_name, is_stack, named_plain_modules
from structured_init.weights import tensor_names

ERRORS = 6.0  # standard errors beyond which two means or standard deviations are not of one distribution
CLOSE = 0.02  # relative difference of standard deviations that is none
SCALE = 1.25  # ratio to the scales of a reference
DEPTH_SCALE = "GPT-2 depth scale σ/√(2n)"
# role of a parameter → names of references in the audit that a standard draws it from; other roles are not compared
NORMS = {"norm": ("torch",), "norm bias": ("torch",)}
STANDARDS: dict[str, dict[str, tuple[str, ...]]] = {
    # timm's is N(0, 0.02²), as GPT-2's
    "gpt2": {"weight": ("timm", DEPTH_SCALE), "embedding": ("timm",), "bias": ("zeros",), **NORMS},
    "llama": {"weight": ("timm",), "embedding": ("timm",), "norm": ("torch",)},
    "torch": {role: ("torch",) for role in ("weight", "attention input", "bias", "embedding", "recurrent", *NORMS)},
    "mamba": {"embedding": ("timm",), **{role: ("mamba-ssm",) for role in ("decay", "step", "skip")}},
}


def moments_differ(one: Sample, other: Sample, exactly: bool = False) -> bool:
    """Tell whether two draws have other means or standard deviations than chance allows.

    Of fewer than ``FEWEST`` numbers only constants are compared, and with ``exactly`` means.
    """
    larger, smaller = max(one.std, other.std), min(one.std, other.std)
    if larger > 0 and one.count > 1 and smaller <= 1e-6 * larger:
        return True
    if one.count >= FEWEST:
        slack = math.sqrt(max(one.kurtosis - 1, other.kurtosis - 1, 0.8) / (2 * one.count))
        if larger - smaller > (CLOSE + ERRORS * slack) * larger:
            return True
    error = ERRORS * larger * math.sqrt(2 / one.count) + 1e-5 * max(abs(one.mean), abs(other.mean))
    return abs(one.mean - other.mean) > error and (one.count >= FEWEST or exactly)


class InLists:
    """Names without the numbers that lists of layers give: ``blocks.#.norm.weight`` is one in every block."""

    def __init__(self, model: nn.Module) -> None:
        self.stacks = {name for name, module in named_plain_modules(model) if is_stack(module)}

    def folded(self, name: str, innermost: bool = False) -> str:
        """Return a name with # for its place in a list, or in the innermost list alone."""
        parts = name.split(".")
        places = [k for k, part in enumerate(parts) if part.isdecimal() and ".".join(parts[:k]) in self.stacks]
        for place in places[-1:] if innermost else places:
            parts[place] = "#"
        return ".".join(parts)


def unlike_standard(found: list[Record], standard: str, model: nn.Module) -> Iterator[Finding | LeftOut]:
    """Compare scales with a standard recipe; gpt2's includes the depth scale of outputs into the residual stream."""
    layers = num_layers(model) if standard == "gpt2" else 0
    deep = [each for each in found if layers > 1 and _has_depth_scale(each, layers)]
    outputs = {each.inside for each in deep}
    wrong = []
    if layers > 1 and not deep:
        wrong.append(("outputs of blocks", f"no matrix has GPT-2's depth scale σ/√(2·{layers})"))
    left = []
    for each in found:
        names = STANDARDS[standard].get(each.role)
        if not names or (each.distribution.kind == "unclear" and each.size < FEWEST):  # of fewer nothing is known
            left.append(each.name)
        elif each in deep:
            continue
        elif each.inside in outputs:
            text = f"without the depth scale σ/√(2·{layers}) that others have"
            wrong.append((each.name, f"{describe_kind(each)}, {text}"))
        elif not any(reference.name in names for reference in each.references):
            wrong.append((each.name, f"{describe_kind(each)}, not as {standard} draws its {each.role}"))
    yield from folded("like", wrong)
    yield from _not_compared(left)


def _has_depth_scale(record: Record, layers: int) -> bool:
    """Tell whether σ is GPT-2's for its depth, within four standard errors."""
    relative = record.std * math.sqrt(2 * layers) / record.place.std
    drawn = record.role in ("weight", "bare") and record.distribution.kind == "normal"
    return drawn and abs(relative - 1) <= 4 / math.sqrt(2 * record.size)


def unlike_numbers(
    found: list[Record], like: Mapping[str, Tensor | float], model: nn.Module
) -> Iterator[Finding | LeftOut]:
    """Compare root mean squares with those of parameters of the same name, else of that in any block."""
    lists = InLists(model)
    own = {name for names in tensor_names(model).values() for name in names}
    kinds = {lists.folded(name) for name in own}
    scales: dict[str, list[float]] = defaultdict(list)
    for name, value in like.items():
        if not isinstance(value, Tensor) and lists.folded(name) not in kinds:
            raise StructuredInitError(f"like['{name}'] is no parameter of the model: {nearest(name, own)}")
        size = torch.as_tensor(value).detach().double().square().mean().sqrt().item()
        for key in {name, lists.folded(name)}:
            scales[key].append(size)
    wrong, left = [], []
    for each in found:
        chance = 1 + 3 / math.sqrt(each.size) if each.std else 1  # of two draws of so many numbers
        enough = each.size >= FEWEST or each.distribution.kind == "constant"
        compared = False
        for name in each.names if enough else ():
            others = scales.get(name) or scales.get(lists.folded(name), [])
            if not others or max(others) > SCALE * chance * min(others):  # of unequal ones none is that of this one
                continue
            compared = True
            mine, wanted = math.hypot(each.usual_std, each.mean), sum(others) / len(others)
            if not max(mine, wanted) <= SCALE * chance * min(mine, wanted):
                tied = f", being tied to {each.name}" if name != each.name else ""
                wrong.append((name, f"root mean square {mine:.2g}{tied}; the reference has {wanted:.2g}"))
        if not compared:
            left.append(each.name)
    if len(left) == len(found):
        raise StructuredInitError(f"like has no parameter of the model's names: {nearest('', own, 3)}")
    yield from folded("like", wrong)
    yield from _not_compared(left)


def _not_compared(names: Collection[str]) -> Iterator[LeftOut]:
    alike = [folded_name(each.names) for each in folded("like", ((name, "") for name in names))]
    if alike:
        yield LeftOut("like", f"not compared: {', '.join(alike)}", partly=True)
