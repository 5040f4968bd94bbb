"""Checks of what a function builds: memory that nobody writes, seeds, and the model's own method."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from structured_init.checks.builds import built, equal, how_many, own_method, tensors, unwritten
from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.measured import Measured
from structured_init.checks.snapshot import difference, entry_of
from structured_init.weights import tensor_names


def memory(measured: Measured) -> Iterator[Finding]:
    """Find parameters and buffers that are never written, and numbers that are not finite."""
    builds = measured.builds
    if builds is None:
        yield from measured.alone("memory")
        return
    drawn = {each.name for each in measured.chosen}
    lines = []
    for name, value in builds.values.items():
        broken = ~value.isfinite() if name in drawn else value.isnan()  # buffers, such as masks, may hold −∞
        if name in builds.bare:
            lines.append((name, f"{how_many(builds.bare[name])} were never written"))
        elif broken.any():
            lines.append((name, f"{how_many(broken)} are NaN{' or infinite' if name in drawn else ''}"))
    yield from folded("memory", lines)


def seed(measured: Measured) -> Iterator[Finding]:
    """Find what the same seed gives other numbers, also on the second of two ranks."""
    builds = measured.builds
    unequal = []
    for name, value in builds.values.items():
        other = builds.again.get(name)
        if name in builds.bare and other is not None and not value.is_meta:
            value, other = (each.masked_fill(builds.bare[name], 0) for each in (value, other))
        if other is None or not equal(value, other):
            unequal.append(name)
    if unequal:  # by chance, or by the rank
        third = tensors(built(builds.build, builds.seed).model)
        for name in unequal:
            between = "ranks 0 and 1" if equal(builds.values[name], third[name]) else "two models"
            yield from folded("seed", [(name, f"differs between {between} of seed {builds.seed}")])


def seeds(measured: Measured) -> Iterator[Finding]:
    """Find draws that are the same under another seed, and a seed that is left behind."""
    builds = measured.builds
    text = f"the same under seeds {builds.seed} and {builds.seed + 1}"
    drawn = [each for each in measured.chosen if each.name in builds.fixed and each.drawn]
    weights = [each for each in drawn if each.trainable and each.size >= FEWEST]
    yield from folded("seeds", [(each.name, f"σ {each.std:.2g}, {text}") for each in weights])
    for name, state in builds.first.states.items():
        if state == builds.other.states[name]:
            text = f"building the model leaves the generator of {name} in one state under every seed: it sets a seed"
            yield Finding("seeds", (), text)


def meta(measured: Measured) -> Iterator[Finding | LeftOut]:
    """Find what the model's own method does not write or tie on an empty model."""
    empty = measured.builds.emptied
    if isinstance(empty, str):
        yield LeftOut("meta", empty)
        return
    own = f"{own_method(empty).__name__}()"
    lost = []
    for name, many in unwritten(empty).items():
        if name not in measured.builds.bare:  # else "memory" says so
            lost.append((name, f"{many} were not written by {own} after to_empty()"))
    untied = _ties(measured.model) - _ties(empty)
    lost += [(names[0], f"no longer tied to {names[1]} after to_empty() and {own}") for names in sorted(untied)]
    yield from folded("meta", lost)


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    return {names for names in tensor_names(model).values() if len(names) > 1}


def own(measured: Measured) -> Iterator[Finding | LeftOut]:
    """Find what the model's own method writes otherwise than a fresh model has it."""
    builds, empty = measured.builds, measured.builds.emptied
    if isinstance(empty, str):
        yield LeftOut("own", empty)
        return
    described = {each.name: each for each in measured.chosen}
    left_out = builds.bare.keys() | unwritten(empty).keys()
    changed = []
    for name, value in tensors(empty).items():
        fixed = name in measured.fixed
        if name in builds.values and name not in left_out and (name in described or fixed):
            fresh, now = (entry_of(each, described.get(name), fixed) for each in (builds.values[name], value))
            text = difference(now, fresh, "a fresh model")
            changed += [(name, f"after {own_method(empty).__name__}(), {text}")] if text else []
    yield from folded("own", changed)
