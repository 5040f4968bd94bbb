# ruff: noqa: F401, I001 (imported for what they register, in this order)
"""The panels that every report has; importing them registers them, in the order of the page."""

from comparison.report.panels import (
    result,
    grid,
    power,
    learning_rates,
    curves,
    steps,
    attention,
    weight_products,
    layers,
    similarity,
    initializations,
    runs,
)
