"""Checks of what a pass shows: the first loss, scales through depth, gradients that stay zero."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from structured_init.checks.depth import BlockScale
from structured_init.checks.findings import Finding, first_names, not_made
from structured_init.checks.measured import Measured, without

GROWTH = 1e3  # of activations from the first block to the last
MOST_UNUSED = 0.25  # of all parameters: beyond, the output is cut off from them on purpose


def depth(measured: Measured) -> Iterator[Finding]:
    """Find activations that run away."""
    found = stacks(measured.depth.blocks)
    if not found:
        why = "no equal blocks were seen to run one behind the other: from block to block nothing was compared"
        yield not_made("depth", why)
    for first, *_, last in found:
        # A branch of zeros adds nothing, which is no scale.
        ratio = last.activation / first.activation if first.activation and last.activation else 1.0
        if not 1 / GROWTH <= ratio <= GROWTH:  # nan too
            text = f"activations change {ratio:.1e}-fold from {first.name} to {last.name}"
            yield Finding("depth", (first.name, last.name), text)


def stacks(blocks: Iterable[BlockScale]) -> list[list[BlockScale]]:
    """Return blocks, two or more, that run one behind the other and whose names differ in numbers alone."""
    found: dict[str, list[BlockScale]] = defaultdict(list)
    for block in blocks:
        found[block.stack].append(block)
    return [stack for stack in found.values() if len(stack) > 1]


def stuck(measured: Measured) -> Iterator[Finding]:
    """Find gradients that stay zero."""
    names = measured.depth.stuck
    if names:
        text = f"{first_names(names)}: the gradient is exactly zero, and stays so when all others have moved"
        yield Finding("stuck", tuple(names), text)


def blind(measured: Measured) -> Iterator[Finding]:
    """Find a model that does not look at what comes in."""
    if measured.depth.blind:
        yield Finding("blind", (), "two different samples give one output: it does not depend on what comes in")


def loss(measured: Measured) -> Iterator[Finding]:
    """Find a first loss that differs from ln C, that of guessing, by more than a share of it."""
    if measured.depth.loss is None:
        yield not_made("loss", "its output does not say how many classes it has: give 'classes' if it has any")
        return
    found, classes = measured.depth.loss
    guessing = math.log(classes)
    if not abs(found / guessing - 1) <= measured.loss_tolerance:  # nan too
        text = f"the first loss is {found:.3g}; guessing among {classes:,} classes has {guessing:.3g}"
        yield Finding("loss", (), text)


def unused(measured: Measured) -> Iterator[Finding]:
    """Find layers that no output depends on. A bare parameter, such as a mask's token, waits for other inputs."""
    still = [each for each in without(measured.unmoved(), measured.unused) if each.role != "bare"]
    names = [each.name for each in still if each.size > 1]
    if len(still) > MOST_UNUSED * len(measured.chosen):
        yield not_made("unused", "no gradient comes to more than a quarter of all parameters, which is meant")
    elif names:
        yield Finding("unused", tuple(names), f"{first_names(names)}: no output depends on it")
