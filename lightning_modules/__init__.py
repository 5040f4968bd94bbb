"""Tasks for Lightning: the public surface, whose names resolve in YAML without a path."""

from __future__ import annotations

from lightning_modules.certified import CertifiedClassifier
from lightning_modules.classifier import ImageClassifier
from lightning_modules.data import ImageData
from lightning_modules.language import LanguageModel, TextClassifier
from lightning_modules.recall import SequenceRecall
from lightning_modules.task import Task

__all__ = [
    "CertifiedClassifier",
    "ImageClassifier",
    "ImageData",
    "LanguageModel",
    "SequenceRecall",
    "Task",
    "TextClassifier",
]
