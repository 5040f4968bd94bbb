"""Tests of an initialization, which stand in the room of checks; ``pytest --initialized`` runs them."""

from structured_init.checks.findings import Check as Check
from structured_init.checks.initialized import CHECKS as CHECKS
from structured_init.checks.initialized import Checked as Checked
from structured_init.checks.initialized import assert_initialized as assert_initialized
from structured_init.checks.initialized import check_initialized as check_initialized

__all__ = ["CHECKS", "Check", "Checked", "assert_initialized", "check_initialized"]
