"""What is suspicious about an initialization: one function per suspicion, one line per finding."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structured_init.analysis.audit.depth import TOKENS, BlockScale, Depth
from structured_init.analysis.audit.records import Record
from structured_init.analysis.audit.references import STEP, references
from structured_init.util.names import folded_name
from structured_init.writer import full_value

GROWTH = 1e3  # of activations or gradients from the first block to the last
LOSS = 0.1  # share of ln C by which the first loss may differ from it
HALF = 65504.0  # the largest number of float16
RESIDUAL = re.compile(r"(^|\.)c_proj\.weight$")  # what GPT-2 and those after it call outputs into the residual stream
EXPERT = re.compile(r"(\bexperts\.\d+)\..*")  # in the name of a parameter, its expert and what follows
SCALED = 0.8  # of the σ of the other matrices: below, outputs are scaled with depth
DRAWN = ("normal", "truncated normal", "uniform", "orthogonal", "delta orthogonal", "unclear", "other")
MATRICES = ("weight", "attention input")  # roles of what multiplies
LITTLE = 1e-4  # of what comes in, which a matrix gives: less than that is lost beside anything else
FEW = 4  # names in a line
NO_STACK = "no equal blocks were seen to run one behind the other: from block to block nothing was compared"


@dataclass(frozen=True)
class Finding:
    """One thing to look at."""

    # "memory", "copied", "parts", "stuck", "explodes", "vanishes", "dead", "overflow", "scale", "loss", "depth scale",
    # "step", "trained"
    kind: str
    names: tuple[str, ...]  # the parameters or blocks that it is about
    text: str  # the line
    problem: bool = True  # whether training suffers from it; else it is an observation

    def __str__(self) -> str:
        return f"{'problem' if self.problem else 'note'}: {self.text}"


def never_initialized(records: Iterable[Record]) -> Iterator[Finding]:
    """Find parameters that hold bare memory, as after ``torch.empty`` or timm's ``weight_init="skip"``."""
    found = [each for each in records if each.distribution.kind == "memory"]
    for names, text in folded((each.name, f"was never initialized: {each.why}") for each in found):
        yield Finding("memory", names, f"{names[0]} {text}")


def folded(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names and the text of the first of them, for lines that differ in the numbers of name and text alone.

    A last number counts behind another: the layers of every block are alike, not those of one block.
    """
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, text in lines:
        alike = re.sub(r"^(\D*)\d+|\d+(?!\d*\.\w+$)", r"\1#", name), re.sub(r"[\d.,e+-]+", "#", text)
        groups.setdefault(alike, []).append((name, text))
    for group in groups.values():
        more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
        yield tuple(name for name, _ in group), group[0][1] + more


def copied(records: Iterable[Record], values: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Find equal draws in different parameters: a layer that was copied, or the same seed before each."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for record in records:
        copied_by_peft = ".original_module." in record.name
        if record.distribution.kind in DRAWN and record.size >= 16 and not copied_by_peft:
            value = full_value(values[record.name], record.name)
            groups[record.shape, tuple(value.flatten()[:: record.size // 16].tolist())].append(record)
    equal: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for group in groups.values():
        if len(group) < 2:
            continue
        first = full_value(values[group[0].name], group[0].name)
        same = [each for each in group if torch.equal(full_value(values[each.name], each.name), first)]
        if any(each.trainable for each in same):  # a frozen copy is meant: a teacher's, or what peft keeps
            same = [each for each in same if each.trainable]
        if len(same) > 1 and not _written(first):
            names = tuple(each.name for each in same)
            for places in (tuple(each.block for each in same), tuple(EXPERT.sub(r"\1", name) for name in names), names):
                if len({name.removeprefix(place) for name, place in zip(names, places, strict=True)}) == 1:
                    break
            equal[places].append(same[0])
    for places, first in equal.items():
        if places[0] == first[0].name and first[0].size == max(first[0].shape):
            continue  # biases whose outputs are added train alike, and tokens that begin equal
        inside = [each.name.removeprefix(f"{places[0]}.") for each in first]
        where, why = folded_name(list(places)), "copied, or drawn from the same seed"
        if places[0] == first[0].name:  # of other names, or in no block
            text = f"{first_names(places)} are equal: {why}"
        elif len(first) > 1:
            text = f"{len(first)} parameters are equal in {where} ({first_names(inside)}): {why}"
        else:
            text = f"{inside[0]} is equal in {where}: {why}"
        yield Finding("copied", tuple(each.name for each in first), text)


def parts(
    records: Iterable[Record], values: Mapping[str, Tensor], without_input: Mapping[str, int] | None = None
) -> Iterator[Finding]:
    """Find drawn matrices of which some rows are zero, and stacks, as of experts, whose parts are zero or equal.

    ``without_input`` has the matrices of which as many rows are the zero W_Δ of a state space.
    """
    found = []
    for each in records:
        stacked = each.place.stacked
        if each.distribution.kind not in DRAWN or not (stacked or each.role in (*MATRICES, "embedding")):
            continue
        rows = full_value(values[each.name], each.name).flatten(1)
        count, zero = len(rows), int((~rows.any(dim=1)).sum())
        padding = zero == 1 and (each.role == "embedding" or count >= TOKENS)
        known = 3 * zero == count or zero == (without_input or {}).get(each.name)  # fused queries of zeros, and W_Δ
        meant = not stacked and (padding or known)
        if zero and not meant:
            found.append((each.name, f"{zero:,} of {count:,} {'parts' if stacked else 'rows'} are zero"))
        elif stacked and each.size >= 16 * count:
            alike: dict[tuple, list[Tensor]] = defaultdict(list)  # only parts that agree in some numbers are compared
            for row in rows:
                others = alike[tuple(row[:: len(row) // 16].tolist())]
                if not any(torch.equal(row, other) for other in others) or _written(row):
                    others.append(row)
            if (differ := sum(map(len, alike.values()))) < count:
                text = f"of {count:,} parts, {differ:,} differ: the others are copied, or drawn alike"
                found.append((each.name, text))
    for names, text in folded(found):
        yield Finding("parts", names, f"{names[0]}: {text}")


def without_gradient(depth: Depth) -> Iterator[Finding]:
    """Find parameters whose gradient is zero and stays zero, such as two zero matrices one behind the other."""
    if depth.stuck:
        text = f"{first_names(depth.stuck)}: the gradient is exactly zero, and stays so when all others have moved"
        yield Finding("stuck", tuple(depth.stuck), text)


def zero_products(products: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    """Find attention layers where both factors of a product are zero; without a batch this is all that can be seen."""
    for name, numbers in products.items():
        for product in ("query_key", "value_output"):
            if numbers.get(f"{product}_largest_factor") == 0:
                factors = product.replace("_", " and ")
                yield Finding("stuck", (name,), f"{name}: {factors} are both zero, so neither gets a gradient")


def first_loss(depth: Depth, tolerance: float = LOSS) -> Iterator[Finding]:
    """Find a first loss that differs from ln C, that of guessing, by more than a share of it."""
    if depth.loss is not None:
        loss, classes = depth.loss
        if not abs(loss / math.log(classes) - 1) <= tolerance:  # nan too
            guessing = f"guessing among {classes:,} classes has {math.log(classes):.3g}"
            said = f"the first loss is {loss:.3g}; {guessing}" + (depth.doubt and f", {depth.doubt}")
            yield Finding("loss", (), said, problem=False)


def through_depth(blocks: Sequence[BlockScale], growth: float = GROWTH) -> Iterator[Finding]:
    """Find activations that die out, and those and gradients times activations that explode or vanish with depth.

    A block of zeros is dead where the next, or the last itself, gets nothing but zeros, or where the gradient ends at
    it or before it, while other blocks get one: past a residual branch of zeros both go on.
    """
    around = zip(blocks, [*blocks[:1], *blocks], [*blocks[1:], *blocks[-1:]], strict=False)
    blind = not any(each.gradient for each in blocks)
    zeros = (each for each in around if each[0].activation == 0)
    ends = (x.name for x, before, after in zeros if not (after.fed and (blind or x.gradient * before.gradient)))
    dead = list(dict.fromkeys(ends))
    if dead:
        yield Finding("dead", tuple(dead), f"{folded_name(dead)}: all activations are zero")
    broken = list(dict.fromkeys(each.name for each in blocks if not math.isfinite(each.activation)))
    if broken:
        yield Finding("explodes", tuple(broken), f"{folded_name(broken)}: activations are not finite")
    for first, *_, last in [] if dead or broken else stacks(blocks):
        for what, begin, end, ends in (
            ("activations", first.activation, last.activation, (first, last)),
            # By how much the output changes when each number that a block gives changes by one percent.
            ("gradients", last.effect, first.effect, (last, first)),
        ):
            ratio = end / begin if begin and end else 1.0  # where a gradient is zero, another finding or note says why
            if ratio > growth or ratio < 1 / growth:
                kind, verb = ("explodes", "grow") if ratio > 1 else ("vanishes", "shrink")
                text = f"{what} {verb} {max(ratio, 1 / ratio):.1e}-fold from {ends[0].label} to {ends[1].label}"
                text += ", each times its block's activations" if what == "gradients" else ""
                yield Finding(kind, tuple(dict.fromkeys(each.name for each in ends)), text)


def stacks(blocks: Iterable[BlockScale]) -> list[list[BlockScale]]:
    """Return blocks, two or more, that run one behind the other and whose names differ in numbers alone."""
    alike: dict[str, list[list[BlockScale]]] = defaultdict(lambda: [[]])
    for block in blocks:
        chains = alike[re.sub(r"\d+", "#", block.name)]
        chains[-1].append(block) if block.behind else chains.append([block])
    return [stack for chains in alike.values() for stack in chains if len(stack) > 1]


def overflow(depth: Depth, records: Iterable[Record]) -> Iterator[Finding]:
    """Find numbers beyond the range of float16."""
    name, largest = depth.largest
    if HALF < largest < math.inf:
        yield Finding("overflow", (name,), f"{name} gives {largest:.1e}: float16 ends at 65,504")
    for record in records:
        if record.largest > HALF and record.distribution.kind != "memory":
            yield Finding("overflow", record.names, f"{record.name} holds {record.largest:.1e}: float16 ends at 65,504")


def too_large(records: Iterable[Record]) -> Iterator[Finding]:
    """Find matrices with a σ of more than 8/√fan_in, and more than twice that of any reference."""
    found = []
    for each in records:
        usual = max(references(each.place), key=lambda reference: reference.expected.std)
        ratio = each.std / (usual.expected.std or math.inf)
        if each.role in MATRICES and ratio > 2 and each.std > 8 / math.sqrt(each.place.fan_in):
            largest = f"{usual.expected.std:.2g} ({usual.name})"
            text = f"is {ratio:.0f} times the largest that is usual for its shape, {largest}"
            found.append((each.name, f": σ {each.std:.2g} {text}"))
    for names, text in folded(found):
        yield Finding("scale", names, names[0] + text)


def too_small(records: Iterable[Record]) -> Iterator[Finding]:
    """Find drawn matrices that give less than a ten-thousandth of what comes in, so that what lies behind is blind."""
    found = []
    for each in records:
        gain = each.std * math.sqrt(each.place.fan_in or 0)
        if each.role in MATRICES and each.distribution.kind in DRAWN and 0 < gain < LITTLE:
            found.append((each.name, f": σ {each.std:.2g} leaves {gain:.1g} of what comes in"))
    for names, text in folded(found):
        yield Finding("scale", names, names[0] + text)


def depth_scale(records: Sequence[Record], layers: int) -> Iterator[Finding]:
    """Note a GPT whose outputs into the residual stream are drawn as large as its other matrices.

    GPT-2 divides them by √(2n). Known by the name ``c_proj``, which GPT-2, minGPT, nanoGPT and others share.
    """
    matrices = [each for each in records if each.role in ("weight", "bare") and len(each.shape) == 2 and each.std > 0]
    outputs = [each for each in matrices if RESIDUAL.search(each.name)]
    blocks = {each.block for each in outputs}
    inputs = [each for each in matrices if each.block in blocks and each not in outputs]
    if len(outputs) < 2 or layers < 2 or not inputs:
        return
    if large := [each for each in outputs if each.std > SCALED * _mean(inputs)]:
        names = [[part for part in each.name.split(".")[-3:-1] if not part.isdigit()] for each in large]
        parts = first_names(list(dict.fromkeys(map(".".join, names))))
        text = (
            f"no depth scale: the {len(large)} {parts} have a mean σ of {_mean(large):.2g}, other matrices of"
            f" {_mean(inputs):.2g}; GPT-2 divides that of outputs by √(2·{layers}) = {math.sqrt(2 * layers):.2g}"
        )
        yield Finding("depth scale", tuple(each.name for each in large), text, problem=False)


def steps(records: Iterable[Record], values: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Note state-space layers whose step Δ = softplus(bias) lies outside of what mamba-ssm draws."""
    outside, sizes = [], []
    for record in records:
        if record.role == "step" and record.distribution.kind != "memory":
            step = torch.nn.functional.softplus(full_value(values[record.name], record.name).double()).median().item()
            if not STEP[0] / 2 <= step <= STEP[1] * 2:
                outside.append(record.name)
                sizes.append(step)
    if outside:
        span = f"{min(sizes):.2g}" if max(sizes) < 1.05 * min(sizes) else f"{min(sizes):.2g} to {max(sizes):.2g}"
        text = f"{first_names(outside)}: the median step is {span}; mamba-ssm draws {STEP[0]:g} to {STEP[1]:g}"
        yield Finding("step", tuple(outside), text, problem=False)


def not_drawn(records: Sequence[Record], trained_norm: str | None) -> Iterator[Finding]:
    """Note a model that looks trained: a normalization that no library builds so."""
    if trained_norm is not None:
        other = sum(each.size for each in records if each.distribution.kind == "other")
        share = other / max(sum(each.size for each in records), 1)
        text = f"the weights look trained: '{trained_norm}' is not constant; {share:.0%} of all numbers follow no draw"
        yield Finding("trained", (trained_norm,), text, problem=False)


def _written(value: Tensor) -> bool:
    """Tell whether all numbers but zeros are equal, as of any part of an identity: no draw gives that."""
    low, high = value[value != 0].aminmax()
    return bool(low == high)


def _mean(records: Sequence[Record]) -> float:
    return sum(each.std for each in records) / len(records)


def first_names(names: Sequence[str]) -> str:
    """Return a few names for a line, and how many more there are."""
    shown = ", ".join(names[:FEW])
    return f"{shown} and {len(names) - FEW} more" if len(names) > FEW else shown
