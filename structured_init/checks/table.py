"""The list of checks: each is a function of a measured model."""

from __future__ import annotations

from collections.abc import Callable

from structured_init.checks import of_a_pass, of_builds, of_numbers, snapshot
from structured_init.checks.findings import Check, Found, NotMade, folded
from structured_init.checks.measured import Measured

Make = Callable[[Measured], Found]


def _by_name(*checks: Make) -> dict[str, Make]:
    return {check.__name__: check for check in checks}


OF_BUILDS = _by_name(of_builds.seed, of_builds.seeds, of_builds.meta, of_builds.own)
OF_NUMBERS = _by_name(
    of_numbers.embeddings,
    of_numbers.norms,
    of_numbers.coarse,
    of_numbers.step,
    of_numbers.copies,
    of_numbers.shared,
    of_numbers.odd,
    of_numbers.scale,
)
OF_A_PASS = _by_name(
    of_a_pass.stuck,
    of_a_pass.blind,
    of_a_pass.causal,
    of_a_pass.padding,
    of_a_pass.order,
    of_a_pass.loss,
    of_a_pass.depth,
    of_a_pass.unused,
)
FIRST, LAST = _by_name(of_builds.memory), _by_name(of_numbers.frozen, snapshot.snapshot)
EVERY = FIRST | OF_BUILDS | OF_NUMBERS | OF_A_PASS | LAST


def make(name: str, measured: Measured) -> Check:
    """Make one check, by name."""
    try:
        if name in OF_BUILDS and measured.builds is None:
            raise NotMade("it needs a function that builds the model")
        if name in OF_A_PASS and measured.depth.why_none:
            raise NotMade(f"{measured.depth.why_none}: give batch=, what the model is called with")
        return Check(name, folded(name, EVERY[name](measured)))
    except NotMade as why:
        return Check(name, left_out=str(why))
