"""Checks of what a pass shows: the first loss, scales through depth, gradients that stay zero."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from structured_init.checks.depth import BlockScale, Depth
from structured_init.checks.findings import Finding, LeftOut, first_names
from structured_init.checks.records import Record

GROWTH = 1e3  # of activations from the first block to the last
MOST_UNUSED = 0.25  # of all parameters: beyond, the output is cut off from them on purpose
NO_STACK = "no equal blocks were seen to run one behind the other: from block to block nothing was compared"


def of_a_pass(measured: Depth) -> Iterator[Finding]:
    """Make the checks that need no parameters and no tolerance."""
    yield from (*depth(measured), *stuck(measured), *blind(measured))


def loss(measured: Depth, tolerance: float) -> Iterator[Finding]:
    """Find a first loss that differs from ln C, that of guessing, by more than a share of it."""
    if measured.loss is None:
        return
    found, classes = measured.loss
    guessing = math.log(classes)
    if not abs(found / guessing - 1) <= tolerance:  # nan too
        doubt = f", {measured.doubt}" if measured.doubt else ""
        said = f"the first loss is {found:.3g}; guessing among {classes:,} classes has {guessing:.3g}{doubt}"
        yield Finding("loss", (), said)


def depth(measured: Depth) -> Iterator[Finding]:
    """Find activations that explode or die out from the first of several equal blocks to the last."""
    for first, *_, last in stacks(measured.blocks):
        # A branch of zeros adds nothing, which is no scale.
        ratio = last.activation / first.activation if first.activation and last.activation else 1.0
        if not 1 / GROWTH <= ratio <= GROWTH:  # nan too
            text = f"activations change {ratio:.1e}-fold from {first.name} to {last.name}"
            yield Finding("depth", (first.name, last.name), text)


def stacks(blocks: Iterable[BlockScale]) -> list[list[BlockScale]]:
    """Return blocks, two or more, that run one behind the other and whose names differ in numbers alone."""
    alike: dict[str, list[list[BlockScale]]] = defaultdict(lambda: [[]])
    for block in blocks:
        chains = alike[re.sub(r"\d+", "#", block.name)]
        chains[-1].append(block) if block.behind else chains.append([block])
    return [stack for chains in alike.values() for stack in chains if len(stack) > 1]


def stuck(measured: Depth) -> Iterator[Finding]:
    """Find parameters whose gradient is zero and stays zero, such as two zero matrices one behind the other."""
    names = measured.stuck
    if names:
        text = f"{first_names(names)}: the gradient is exactly zero, and stays so when all others have moved"
        yield Finding("stuck", tuple(names), text)


def blind(measured: Depth) -> Iterator[Finding]:
    """Find a model that gives two different samples one output, though not the same number everywhere."""
    if measured.blind:
        yield Finding("blind", (), "two different samples give one output: it does not depend on what comes in")


def unmoved(measured: Depth, records: Iterable[Record]) -> list[Record]:
    """Return trainable parameters that no output depends on, where a pass was made."""
    if not measured.gradients:
        return []
    return [each for each in records if each.trainable and each.name not in measured.gradients]


def unused(measured: Depth, records: Collection[Record]) -> Iterator[Finding | LeftOut]:
    """Find layers that no output depends on. A bare parameter, such as a mask's token, waits for other inputs."""
    still = [each for each in unmoved(measured, records) if each.role != "bare"]
    names = [each.name for each in still if each.size > 1]
    if len(still) > MOST_UNUSED * len(records):
        yield LeftOut("unused", "no gradient comes to more than a quarter of all parameters, which is meant")
    elif names:
        yield Finding("unused", tuple(names), f"{first_names(names)}: no output depends on it")
