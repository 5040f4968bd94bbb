"""Checks of what a function builds: memory that nobody writes, seeds, and the model's own method."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from structured_init.checks.builds import equal, how_many, tensors, unwritten
from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, folded
from structured_init.checks.measured import Measured
from structured_init.checks.snapshot import difference, entry_of
from structured_init.weights import tensor_names


def memory(measured: Measured) -> Iterator[Finding]:
    """Find parameters and buffers that are never written, and numbers that are not finite."""
    builds = measured.builds
    lines = {}
    if builds is None:
        lines = {each.name: f"never initialized, {each.bare}" for each in measured.chosen if each.bare}
        return folded("memory", lines.items())
    drawn = {each.name for each in measured.chosen}
    for name, value in builds.values.items():
        broken = ~value.isfinite() if name in drawn else value.isnan()  # buffers, such as masks, may hold −∞
        if name in builds.bare:
            lines[name] = f"{how_many(builds.bare[name])} were never written"
        elif broken.any():
            lines[name] = f"{how_many(broken)} are NaN{' or infinite' if name in drawn else ''}"
    return folded("memory", lines.items())


def seed(measured: Measured) -> Iterator[Finding]:
    """Find what the same seed gives other numbers, also on the second of two ranks."""
    builds = measured.builds
    lines = []
    for name, value in builds.values.items():
        same = name in builds.again and equal(value, builds.again[name])
        if not same and name not in builds.bare:  # else "memory" says so
            lines.append((name, f"differs between two models of seed {builds.seed}, the second on rank 1 of two"))
    return folded("seed", lines)


def seeds(measured: Measured) -> Iterator[Finding]:
    """Find draws that are the same under another seed, and a seed that is left behind."""
    builds = measured.builds
    text = f"the same under seeds {builds.seed} and {builds.seed + 1}"
    lines = []
    for each in measured.chosen:
        if each.name in builds.fixed and each.drawn and each.trainable and each.size >= FEWEST:
            lines.append((each.name, f"σ {each.std:.2g}, {text}"))
    yield from folded("seeds", lines)
    for name, state in builds.states.items():
        if state == builds.other_states[name]:
            text = f"building the model leaves the generator of {name} in one state under every seed: it sets a seed"
            yield Finding("seeds", (), text)


def meta(measured: Measured) -> Iterator[Finding]:
    """Find what the model's own method does not write or tie on an empty model."""
    builds = measured.builds
    lost = []
    for name, many in unwritten(builds.emptied).items():
        if name not in builds.bare:  # else "memory" says so
            lost.append((name, f"{many} were not written by {builds.method}() after to_empty()"))
    for names in sorted(_ties(measured.model) - _ties(builds.emptied)):
        lost.append((names[0], f"no longer tied to {names[1]} after to_empty() and {builds.method}()"))
    return folded("meta", lost)


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    return {names for names in tensor_names(model).values() if len(names) > 1}


def own(measured: Measured) -> Iterator[Finding]:
    """Find what the model's own method writes otherwise than a fresh model has it."""
    builds, now = measured.builds, tensors(measured.builds.emptied)
    described = {each.name: each for each in measured.chosen}
    asked = now.keys() & (described.keys() | measured.fixed) - builds.bare.keys() - unwritten(builds.emptied).keys()
    changed = []
    for name, value in builds.values.items():
        if name in asked:
            entries = [entry_of(each, described.get(name), name in measured.fixed) for each in (now[name], value)]
            text = difference(*entries, "a fresh model")
            if text:
                changed.append((name, f"after {builds.method}(), {text}"))
    return folded("own", changed)
