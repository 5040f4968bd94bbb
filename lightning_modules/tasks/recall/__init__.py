"""Recall: sequence models that have to repeat what they have read."""

from __future__ import annotations

from lightning_modules.tasks.recall.model import SequenceRecall

__all__ = ["SequenceRecall"]
