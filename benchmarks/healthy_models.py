"""Healthy models of many libraries, which ``benchmarks.mutants`` checks as they are."""

from __future__ import annotations

from benchmarks.conformance_models import Build
from benchmarks.mutant_models import mutant_models


def healthy_models() -> dict[str, Build]:
    """Return the models by ``library/name``."""
    return mutant_models()
