"""What is public here and stands in the room of checks, which itself looks at models by this one."""

from structured_init.checks.audit import Audit as Audit
from structured_init.checks.audit import audit as audit
