"""Checks of an initialization: ``audit`` shows all that they find, ``assert_initialized`` fails on every problem."""

import structured_init.analysis  # noqa: F401  (which ends with the audit: begun in here, it would find half a room)
