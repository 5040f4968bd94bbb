"""Tasks for Lightning: the public surface, whose names resolve in YAML without a path."""

from .data import ImageData
from .tasks.certified.classifier import CertifiedClassifier
from .tasks.image import ImageClassifier
from .tasks.language import LanguageModel, TextClassifier
from .tasks.recall import SequenceRecall
from .tasks.task import Task

__all__ = [
    "CertifiedClassifier",
    "ImageClassifier",
    "ImageData",
    "LanguageModel",
    "SequenceRecall",
    "Task",
    "TextClassifier",
]
