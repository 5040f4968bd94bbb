"""Checks of the method by which a model writes all its weights, on a model that is empty."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from inspect import Parameter, signature

import torch
from torch import nn

from structured_init.checks.builds import Builds, Filled, built, tensors, unwritten
from structured_init.checks.entries import difference, entry_of
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.records import Record
from structured_init.undisturbed import own_random_state
from structured_init.weights import tensor_names

SEVERAL = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
WITHOUT_METHOD = "the model has no method that writes all its weights, init_weights() or initialize_weights()"


def meta(builds: Builds, drawn: Iterable[Record], fixed: Collection[str]) -> Iterator[Finding | LeftOut]:
    """Build on the meta device, call the model's own method, and compare with a fresh model."""
    if own_method(builds.first.model) is None:
        yield from _left_out(WITHOUT_METHOD)
        return
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # loaded weights go nowhere
            empty = built(builds.build, builds.seed, Filled()).model
        with own_random_state(builds.seed), Filled():
            empty.to_empty(device="cpu")
            own_method(empty)()
            if hasattr(empty, "tie_weights"):  # of transformers
                empty.tie_weights()
    except Exception as error:  # whatever a host raises where it does not know the meta device
        yield from _left_out(f"meta device: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
        return
    own = f"{own_method(empty).__name__}()"
    theirs, bare, lost = tensors(empty), unwritten(empty), []
    for name, many in bare.items():
        if name not in builds.bare:  # else "memory" says so
            lost.append((name, f"{many} were not written by {own} after to_empty()"))
    if 2 * len(lost) > len(builds.values):
        yield from _left_out(f"{own} leaves {len(lost)} of {len(builds.values)} tensors: it is for no empty model")
        return
    untied = _ties(builds.first.model) - _ties(empty)
    lost += [(names[0], f"no longer tied to {names[1]} after to_empty() and {own}") for names in sorted(untied)]
    yield from folded("meta", lost)
    changed = []
    described = {each.name: each for each in drawn}
    for name, value in builds.values.items():
        written = name in theirs and name not in bare and name not in builds.bare
        if written and (name in described or name in fixed):
            fresh, now = (entry_of(each, described.get(name), name in fixed) for each in (value, theirs[name]))
            text = difference(now, fresh, "a fresh model")
            changed += [(name, f"after {own}, {text}")] if text else []
    yield from folded("own", changed)


def _left_out(why: str) -> Iterator[LeftOut]:
    yield LeftOut("meta", why)
    yield LeftOut("own", why)


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    return {names for names in tensor_names(model).values() if len(names) > 1}


def own_method(model: nn.Module) -> Callable[[], object] | None:
    """Return the method by which a model writes all its weights; ``None`` where it has none.

    A method that needs an argument, as one for ``apply`` needs a module, claims what it is given alone. So does
    ``reset_parameters`` of a layer.
    """
    for name in ("initialize_weights", "init_weights"):
        method = getattr(model, name, None)
        given = signature(method).parameters.values() if callable(method) else ()
        required = [each for each in given if each.default is each.empty and each.kind not in SEVERAL]
        if callable(method) and not required:
            return method
    return None
