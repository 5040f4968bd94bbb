# ruff: noqa: F401, I001 (imported for what they register, in this order)
"""The panels that every report has; importing them registers them, in the order of the page."""

from comparison.say.panels import result, grid, curves, attention, learning_rates, runs
