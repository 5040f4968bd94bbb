"""An audit of any model: what initialization it really has, and what is suspicious about it."""

from structured_init.analysis.audit.audit import Audit, audit
from structured_init.analysis.audit.findings import Finding
from structured_init.analysis.audit.records import Record

__all__ = ["Audit", "Finding", "Record", "audit"]
