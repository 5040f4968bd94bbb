"""Generated tasks in which a sequence model has to recall what it has read."""

from __future__ import annotations

from lightning_modules.data.recall.recall_data import RecallData
from lightning_modules.data.recall.tasks import TASKS, Example, RecallTask

__all__ = ["TASKS", "Example", "RecallData", "RecallTask"]
