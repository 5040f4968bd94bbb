"""Runs that were made elsewhere: a table, logs of Lightning and TensorBoard, exports of Weights & Biases and MLflow.

Whatever they come from, runs are one mapping, :data:`Runs`, from which a comparison is put together as if it had been
made here: the same table, intervals and curves.
"""

from __future__ import annotations

from comparison.results.elsewhere.comparison import Elsewhere, comparison_of
from comparison.results.elsewhere.reading import read_elsewhere
from comparison.results.elsewhere.runs import Runs

__all__ = ["Elsewhere", "Runs", "comparison_of", "read_elsewhere"]
