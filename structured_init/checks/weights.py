"""Checks of parameters alone: memory, copies, rows of zeros, and scales that nobody draws."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from structured_init.checks.findings import Finding, first_names, folded
from structured_init.checks.loss import TOKENS
from structured_init.checks.measured import Measured
from structured_init.checks.records import FEWEST, Record
from structured_init.checks.references import STEP, num_layers, references
from structured_init.util.names import folded_name, named_plain_modules

RESIDUAL = re.compile(r"(^|\.)c_proj\.weight$")  # what GPT-2 and those after it call outputs into the residual stream
EXPERT = re.compile(r"(\bexperts\.\d+)\..*")  # in the name of a parameter, its expert and what follows
SCALED = 0.8  # of the σ of the other matrices: below, outputs are scaled with depth
DRAWN = ("normal", "truncated normal", "uniform", "orthogonal", "delta orthogonal", "unclear", "other")
MATRICES = ("weight", "attention input")  # roles of what multiplies
FAINT = 0.02  # of what comes in, which half of all matrices give, if σ² was taken for σ; GPT-2's in width 32 give 0.04
BIAS = 3.0  # times the σ of U(±1/√fan_in), which torch draws biases from
DECAY = 1000.0  # −A of a state space: more is forgotten within a step, and mostly a logarithm that was not taken
LITTLE = 1e-4  # of what comes in, which a matrix gives: less than that is lost beside anything else
ENOUGH = 16  # numbers by which copies are told from chance


def memory(measured: Measured) -> Iterator[Finding]:
    """Find parameters that hold bare memory, as after ``torch.empty`` or timm's ``weight_init="skip"``."""
    bare = [each for each in measured.records if each.distribution.kind == "memory"]
    return folded("memory", ((each.name, f"never initialized, {each.why}") for each in bare))


def looks_drawn(record: Record) -> bool:
    """Tell weights from a table that is computed, which looks like no random numbers."""
    kinds = {record.distribution.kind, *(known.expected.kind for known in record.references)}
    random = not kinds.isdisjoint(("normal", "truncated normal", "uniform"))
    return random and record.trainable and record.size >= FEWEST


def copies(measured: Measured) -> Iterator[Finding]:
    """Find equal draws in different parameters: a layer that was copied, or the same seed before each."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for record in measured.records:
        copied_by_peft = ".original_module." in record.name
        table = record.name in measured.fixed and not looks_drawn(record)  # computed tables may be equal
        if record.distribution.kind in DRAWN and record.size >= ENOUGH and not copied_by_peft and not table:
            some = measured.value(record).flatten()[:: record.size // ENOUGH]
            groups[record.shape, tuple(some.tolist())].append(record)
    equal: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for first, *others in groups.values():
        value = measured.value(first)
        same = [first, *(each for each in others if torch.equal(measured.value(each), value))]
        moving = [each for each in same if each.trainable and each.name not in measured.unused]
        same = moving or same  # a frozen copy is meant: a teacher's, or what peft keeps
        vector = first.size == max(first.shape)  # biases whose outputs are added train alike, and tokens begin equal
        if len(same) > 1 and not _written(value):
            places = _places(same)
            if places[0] != same[0].name or not vector:
                equal[places].append(same[0].name)
    for places, names in equal.items():
        yield Finding("copies", tuple(names), f"{_equal_in_words(places, names)}: copied, or drawn from the same seed")


def _places(same: Sequence[Record]) -> tuple[str, ...]:
    """Return the blocks, or the experts, in which several parameters have one name; else the parameters."""
    names = tuple(each.name for each in same)
    for places in (tuple(each.block for each in same), tuple(EXPERT.sub(r"\1", name) for name in names)):
        if len({name.removeprefix(place) for name, place in zip(names, places, strict=True)}) == 1:
            return places
    return names


def _equal_in_words(places: tuple[str, ...], names: Sequence[str]) -> str:
    if places[0] == names[0]:  # of other names, or in no block
        return f"{first_names(places)} are equal"
    inside = [name.removeprefix(f"{places[0]}.") for name in names]
    if len(names) == 1:
        return f"{inside[0]} is equal in {folded_name(places)}"
    return f"{len(names)} parameters are equal in {folded_name(places)} ({first_names(inside)})"


def parts(measured: Measured) -> Iterator[Finding]:
    """Find drawn matrices of which some rows are zero, and stacks, as of experts, whose parts are zero or equal."""
    found = []
    for each in measured.records:
        stacked = each.place.stacked
        if each.distribution.kind not in DRAWN or not (stacked or each.role in (*MATRICES, "embedding")):
            continue
        rows = measured.value(each).flatten(1)
        count, zero = len(rows), int((~rows.any(dim=1)).sum())
        if zero and (stacked or not _meant(measured, each, zero)):
            found.append((each.name, f"{zero:,} of {count:,} {'parts' if stacked else 'rows'} are zero"))
        elif stacked and each.size >= ENOUGH * count and (differ := _different(rows)) < count:
            text = f"of {count:,} parts, {differ:,} differ: the others are copied, or drawn alike"
            found.append((each.name, text))
    return folded("copies", found)


def _meant(measured: Measured, record: Record, zero: int) -> bool:
    """Tell rows of zeros that are meant: of a padding token, of fused queries, of the Δ of a state space."""
    count = record.shape[0]
    padding = zero == 1 and (record.role == "embedding" or count >= TOKENS)
    return padding or 3 * zero == count or zero == measured.steps_without_input.get(record.name)


def _different(rows: Tensor) -> int:
    """Count rows that are no copy of one before; parts of an identity may be equal."""
    alike: dict[tuple, list[Tensor]] = defaultdict(list)  # only rows that agree in some numbers are compared
    for row in rows:
        others = alike[tuple(row[:: len(row) // ENOUGH].tolist())]
        if _written(row) or not any(torch.equal(row, other) for other in others):
            others.append(row)
    return sum(map(len, alike.values()))


def _written(value: Tensor) -> bool:
    """Tell whether all numbers but zeros are equal, as of any part of an identity: no draw gives that."""
    low, high = value[value != 0].aminmax()
    return bool(low == high)


def embeddings(measured: Measured) -> Iterator[Finding]:
    """Find tables of tokens whose rows are all equal, and a row of a padding token that is not zero."""
    for name, module in named_plain_modules(measured.model):
        if not isinstance(module, nn.Embedding) or module.weight.is_meta:
            continue
        weight = f"{name}.weight".removeprefix(".")
        padding = module.padding_idx
        if len(module.weight) > 1 and bool((module.weight == module.weight[:1]).all()):
            yield Finding(
                "embeddings", (weight,), f"{weight}: all rows are equal, so that no token differs from another"
            )
        elif padding is not None and module.weight[padding].any():
            yield Finding("embeddings", (weight,), f"{weight}: the row of the padding token, {padding}, is not zero")


def scale(measured: Measured) -> Iterator[Finding]:
    """Find matrices with a σ above 8/√fan_in and twice that of any reference, and such that hardly give anything."""
    found = []
    gains = {}
    for each in measured.records:
        bound = BIAS / math.sqrt(3 * max(each.place.fan_in, 1))
        if each.role == "bias" and each.distribution.kind in DRAWN and each.usual_std > bound:
            found.append(
                (each.name, f"σ {each.usual_std:.2g} is more than {BIAS:g} times what torch draws biases with")
            )
        if each.role not in MATRICES:
            continue
        gain = each.std * math.sqrt(each.place.fan_in)
        usual = max(references(each.place), key=lambda reference: reference.expected.std)
        ratio = each.std / (usual.expected.std or math.inf)
        if ratio > 2 and gain > 8:
            largest = f"{usual.expected.std:.2g} ({usual.name})"
            text = f"σ {each.std:.2g} is {ratio:.0f} times the largest that is usual for its shape, {largest}"
            found.append((each.name, text))
        if each.distribution.kind in DRAWN and 0 < gain < LITTLE:
            found.append((each.name, f"σ {each.std:.2g} leaves {gain:.1g} of what comes in"))
        elif each.distribution.kind in DRAWN and gain:
            gains[each.name] = gain
    middle = sorted(gains.values())[len(gains) // 2 :][:1]
    if len(gains) > 3 and middle[0] < FAINT:
        small = [name for name, gain in gains.items() if gain < FAINT]
        text = f"{first_names(small)}: most matrices leave less than {FAINT:g} of what comes in; half, {middle[0]:.1g}"
        yield Finding("scale", tuple(small), text)
    yield from folded("scale", found)


def norms(measured: Measured) -> Iterator[Finding]:
    """Find norms that begin with a factor above one, or a bias that is not zero, everywhere."""
    found = []
    for each in measured.records:
        if each.distribution.kind == "constant" and each.size > 1:
            value = each.distribution.center
            if each.role == "norm" and value > 1:
                found.append((each.name, f"begins at {value:.3g}; norms begin at 1, or at 0 where a model adds 1"))
            if each.role == "norm bias" and value != 0:
                found.append((each.name, f"begins at {value:.3g}; biases of norms begin at 0"))
    return folded("norms", found)


def depth_scale(measured: Measured) -> Iterator[Finding]:
    """Note a GPT whose outputs into the residual stream are drawn as large as its other matrices.

    GPT-2 divides them by √(2n). Known by the name ``c_proj``, which GPT-2, minGPT, nanoGPT and others share.
    """
    layers = num_layers(measured.model)
    matrices = [each for each in measured.records if each.role in ("weight", "bare") and len(each.shape) == 2]
    outputs = [each for each in matrices if RESIDUAL.search(each.name) and each.std > 0]
    blocks = {each.block for each in outputs}
    inputs = [each for each in matrices if each.block in blocks and each not in outputs and each.std > 0]
    if measured.trained or len(outputs) < 2 or layers < 2 or not inputs:
        return
    usual = _mean_std(inputs)
    large = [each for each in outputs if each.std > SCALED * usual]
    if large:
        names = dict.fromkeys(re.sub(r"\.?\b\d+\b\.?", "", ".".join(each.name.split(".")[-3:-1])) for each in large)
        text = (
            f"no depth scale: the {len(large)} {first_names([*names])} have a mean σ of {_mean_std(large):.2g}, other"
            f" matrices of {usual:.2g}; GPT-2 divides that of outputs by √(2·{layers}) = {math.sqrt(2 * layers):.2g}"
        )
        yield Finding("depth scale", tuple(each.name for each in large), text, problem=False)


def _mean_std(records: Iterable[Record]) -> float:
    stds = [each.std for each in records]
    return sum(stds) / len(stds)


def step(measured: Measured) -> Iterator[Finding]:
    """Find state-space layers whose step Δ = softplus(bias) lies outside of what mamba-ssm draws."""
    sizes = measured.step_sizes()
    outside = {name: size for name, size in sizes.items() if not STEP[0] / 2 <= size <= STEP[1] * 2}
    if outside:
        low, high = min(outside.values()), max(outside.values())
        span = f"{low:.2g}" if high < 1.05 * low else f"{low:.2g} to {high:.2g}"
        text = f"{first_names([*outside])}: the median step is {span}; mamba-ssm draws {STEP[0]:g} to {STEP[1]:g}"
        yield Finding("step", tuple(outside), text)
    for each in measured.records:
        if each.role == "decay" and math.log(DECAY) < each.largest < math.inf:
            text = f"{each.name}: holds {each.largest:.3g} as the logarithm of a decay: nothing is left after a step"
            yield Finding("step", each.names, text)


def trained(measured: Measured) -> Iterator[Finding]:
    """Note a model that looks trained: a normalization that no library builds so."""
    if measured.trained is not None:
        other = sum(each.size for each in measured.records if each.distribution.kind == "other")
        share = other / max(sum(each.size for each in measured.records), 1)
        norm = measured.trained
        text = f"the weights look trained: '{norm}' is not constant; {share:.0%} of all numbers follow no draw"
        yield Finding("trained", (norm,), text, problem=False)
