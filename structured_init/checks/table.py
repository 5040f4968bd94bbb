"""The list of checks: each is a function of a measured model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from structured_init.checks import among, inside, of_builds, signal, snapshot, tokens
from structured_init.checks.findings import Finding, not_made
from structured_init.checks.measured import Measured

Check = Callable[[Measured], Iterator[Finding]]
OF_BUILDS: dict[str, Check] = {
    "seed": of_builds.seed,
    "seeds": of_builds.seeds,
    "meta": of_builds.meta,
    "own": of_builds.own,
}
OF_NUMBERS: dict[str, Check] = {
    "embeddings": partial(inside.of_each, "embeddings", inside.embeddings),
    "norms": partial(inside.of_each, "norms", inside.norms),
    "coarse": partial(inside.of_each, "coarse", inside.coarse),
    "step": partial(inside.of_each, "step", inside.step),
    "copies": among.copies,
    "shared": among.shared,
    "odd": among.odd,
    "scale": among.scale,
}
OF_A_PASS: dict[str, Check] = {
    "stuck": signal.stuck,
    "blind": signal.blind,
    "causal": tokens.causal,
    "padding": tokens.padding,
    "order": tokens.order,
    "loss": signal.loss,
    "depth": signal.depth,
    "unused": signal.unused,
}
EVERY: dict[str, Check] = {
    "memory": of_builds.memory,
    **OF_BUILDS,
    **OF_NUMBERS,
    **OF_A_PASS,
    "frozen": among.frozen,
    "snapshot": snapshot.snapshot,
}


def find(check: str, measured: Measured) -> Iterator[Finding]:
    """Make one check, by name; say why where it cannot be made."""
    if check in OF_BUILDS and measured.builds is None:
        yield not_made(check, "it needs a function that builds the model")
    elif check in ("meta", "own") and measured.builds.why_none:
        yield not_made(check, measured.builds.why_none)
    elif check in OF_A_PASS and measured.depth.why_none:
        yield not_made(check, f"{measured.depth.why_none}: give batch=, what the model is called with")
    else:
        yield from EVERY[check](measured)
