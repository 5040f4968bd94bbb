"""What a test registers is forgotten after it."""

from __future__ import annotations

import pytest

from structured_init.hosts.known import ATTENTION
from structured_init.hosts.positions import TOKENS
from structured_init.hosts.state_space import STATE_SPACE


@pytest.fixture(autouse=True)
def registries_as_they_were(monkeypatch):
    """Put every registry back after each test."""
    for registry in (ATTENTION, TOKENS, STATE_SPACE):
        monkeypatch.setattr(registry, "_describe", dict(registry._describe))
