"""Data for the tasks: Hugging Face ``datasets`` in, batches out, every batch a function of (seed, epoch, index)."""

from __future__ import annotations

from lightning_modules.data.image_data import ImageData
from lightning_modules.data.recall import RecallData
from lightning_modules.data.seeded import EpochSampler, ResumableLoader
from lightning_modules.data.text.classification_data import TextClassificationData
from lightning_modules.data.text.text_data import TextData

__all__ = [
    "EpochSampler",
    "ImageData",
    "RecallData",
    "ResumableLoader",
    "TextClassificationData",
    "TextData",
]
