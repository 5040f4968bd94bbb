"""Checks of what a function builds: memory that nobody writes, seeds, and the model's own method."""

from __future__ import annotations

from functools import partial

from torch import nn

from structured_init.checks.builds import equal, how_many, tensors, unwritten
from structured_init.checks.findings import Found
from structured_init.checks.measured import Measured
from structured_init.checks.snapshot import difference, entry_of
from structured_init.weights import tensor_names


def memory(measured: Measured) -> Found:
    """Find parameters and buffers that are never written, and numbers that are not finite."""
    builds = measured.builds
    if builds is None:
        for each in measured.chosen:
            if each.bare:
                yield each.name, f"never initialized, {each.bare}"
        return
    drawn = {each.name for each in measured.chosen}
    for name, value in builds.values.items():
        broken = ~value.isfinite() if name in drawn else value.isnan()  # buffers, such as masks, may hold −∞
        if name in builds.bare:
            yield name, f"{how_many(builds.bare[name])} were never written"
        elif broken.any():
            yield name, f"{how_many(broken)} are not finite"


def seed(measured: Measured) -> Found:
    """Find what the same seed gives other numbers, also on the second of two ranks."""
    builds = measured.builds
    for name, value in builds.values.items():
        same = name in builds.again and equal(value, builds.again[name])
        if not same and name not in builds.bare:  # else "memory" says so
            yield name, f"differs between two models of seed {builds.seed}, the second on rank 1 of two"


def seeds(measured: Measured) -> Found:
    """Find draws that are the same under another seed, and a seed that is left behind."""
    builds = measured.builds
    text = f"the same under seeds {builds.seed} and {builds.seed + 1}"
    for each in measured.draws:
        if each.name in builds.fixed and each.trainable:
            yield each.name, f"σ {each.std:.2g}, {text}"
    for name, state in builds.states.items():
        if state == builds.other_states[name]:
            where = f"building the model leaves the generator of {name} in one state under every seed"
            yield (), f"{where}: it sets a seed"


def meta(measured: Measured) -> Found:
    """Find what the model's own method does not write or tie on an empty model."""
    builds, emptied = measured.builds, measured.builds.emptied
    lost = unwritten(emptied)
    for name in sorted(lost.keys() - builds.bare.keys()):  # of those "memory" says so
        yield name, f"{lost[name]} were not written by {builds.method}() after to_empty()"
    for names in sorted(_ties(measured.model) - _ties(emptied)):
        yield names[0], f"no longer tied to {names[1]} after to_empty() and {builds.method}()"


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    return {names for names in tensor_names(model).values() if len(names) > 1}


def own(measured: Measured) -> Found:
    """Find what the model's own method writes otherwise than a fresh model has it."""
    builds, emptied = measured.builds, measured.builds.emptied
    now, records = tensors(emptied), {each.name: each for each in measured.chosen}
    asked = now.keys() & (records.keys() | builds.fixed) - builds.bare.keys() - unwritten(emptied).keys()
    for name in sorted(asked):
        entry = partial(entry_of, record=records.get(name), fixed=name in builds.fixed)
        text = difference(entry(now[name]), entry(builds.values[name]), "a fresh model")
        if text:
            yield name, f"after {builds.method}(), {text}"
