"""Checks of what a pass shows: the first loss, scales through depth, gradients that stay zero, numbers too large."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from structured_init.checks.depth import BlockScale
from structured_init.checks.findings import Finding, first_names
from structured_init.checks.measured import Measured
from structured_init.util.names import folded_name

HALF = 65504.0  # the largest number of float16
NO_STACK = "no equal blocks were seen to run one behind the other: from block to block nothing was compared"


def loss(measured: Measured) -> Iterator[Finding]:
    """Find a first loss that differs from ln C, that of guessing, by more than a share of it."""
    if measured.depth.loss is None or measured.trained:
        return
    found, classes = measured.depth.loss
    guessing = math.log(classes)
    if not abs(found / guessing - 1) <= measured.loss_tolerance:  # nan too
        doubt = measured.depth.doubt and f", {measured.depth.doubt}"
        said = f"the first loss is {found:.3g}; guessing among {classes:,} classes has {guessing:.3g}{doubt}"
        yield Finding("loss", (), said)


def depth(measured: Measured) -> Iterator[Finding]:
    """Find activations that die out, and those and gradients times activations that explode or vanish with depth.

    A block of zeros is dead where the next, or the last itself, gets nothing but zeros, or where the gradient ends at
    it or before it, while other blocks get one: past a residual branch of zeros both go on.
    """
    blocks = measured.depth.blocks
    blind = not any(each.gradient for each in blocks)
    dead: dict[str, None] = {}
    for each, before, after in zip(blocks, [*blocks[:1], *blocks], [*blocks[1:], *blocks[-1:]], strict=False):
        goes_on = after.fed and (blind or each.gradient * before.gradient)
        if each.activation == 0 and not goes_on:
            dead[each.name] = None
    broken = dict.fromkeys(each.name for each in blocks if not math.isfinite(each.activation))
    if dead:
        yield Finding("depth", tuple(dead), f"{folded_name([*dead])}: all activations are zero")
    if broken:
        yield Finding("depth", tuple(broken), f"{folded_name([*broken])}: activations are not finite")
    if dead or broken:
        return
    for first, *_, last in stacks(blocks):
        yield from _change("activations", first.activation, last.activation, first, last, measured.growth)
        # By how much the output changes when each number that a block gives changes by one percent.
        yield from _change("gradients", last.effect, first.effect, last, first, measured.growth)


def _change(
    what: str, begin: float, end: float, first: BlockScale, last: BlockScale, growth: float
) -> Iterator[Finding]:
    ratio = end / begin if begin and end else 1.0  # where a gradient is zero, another finding or note says why
    if 1 / growth <= ratio <= growth:
        return
    verb = "grow" if ratio > 1 else "shrink"
    text = f"{what} {verb} {max(ratio, 1 / ratio):.1e}-fold from {first.label} to {last.label}"
    text += ", each times its block's activations" if what == "gradients" else ""
    yield Finding("depth", tuple(dict.fromkeys((first.name, last.name))), text)


def stacks(blocks: Iterable[BlockScale]) -> list[list[BlockScale]]:
    """Return blocks, two or more, that run one behind the other and whose names differ in numbers alone."""
    alike: dict[str, list[list[BlockScale]]] = defaultdict(lambda: [[]])
    for block in blocks:
        chains = alike[re.sub(r"\d+", "#", block.name)]
        chains[-1].append(block) if block.behind else chains.append([block])
    return [stack for chains in alike.values() for stack in chains if len(stack) > 1]


def stuck(measured: Measured) -> Iterator[Finding]:
    """Find parameters whose gradient is zero and stays zero, such as two zero matrices one behind the other.

    Without a pass, attention layers where both factors of a product are zero are all that can be seen.
    """
    names = measured.depth.stuck
    if names:
        text = f"{first_names(names)}: the gradient is exactly zero, and stays so when all others have moved"
        yield Finding("stuck", tuple(names), text)
    if measured.depth.gradients:
        return
    for name, numbers in measured.products.items():
        for product in ("query_key", "value_output"):
            if numbers[f"{product}_largest_factor"] == 0:
                factors = product.replace("_", " and ")
                yield Finding("stuck", (name,), f"{name}: {factors} are both zero, so neither gets a gradient")


def blind(measured: Measured) -> Iterator[Finding]:
    """Find a model that gives two different samples one output, though not the same number everywhere."""
    if measured.depth.blind:
        yield Finding("blind", (), "two different samples give one output: it does not depend on what comes in")


def overflow(measured: Measured) -> Iterator[Finding]:
    """Find numbers beyond the range of float16."""
    name, largest = measured.depth.largest
    if HALF < largest < math.inf:
        yield Finding("overflow", (name,), f"{name} gives {largest:.1e}: float16 ends at 65,504")
    for each in measured.records:
        if each.largest > HALF and each.distribution.kind != "memory":
            yield Finding("overflow", each.names, f"{each.name} holds {each.largest:.1e}: float16 ends at 65,504")
