"""Checks of an initialization: ``audit`` shows all that they find, ``assert_initialized`` fails on every problem."""
