"""Data for the tasks: Hugging Face ``datasets`` in, batches out, every batch a function of (seed, epoch, index)."""

from __future__ import annotations

from lightning_modules.data.image_data import ImageData
from lightning_modules.data.loader import EpochSampler, ResumableLoader

__all__ = ["EpochSampler", "ImageData", "ResumableLoader"]
