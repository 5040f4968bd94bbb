"""An audit of any model, which stands in the room of checks."""

from structured_init.checks.audit import Audit as Audit
from structured_init.checks.audit import audit as audit

__all__ = ["Audit", "audit"]
