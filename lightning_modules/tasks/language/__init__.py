"""Tasks on text: models of language, causal and masked, and classifiers."""

from __future__ import annotations

from lightning_modules.tasks.language.classifier import TextClassifier
from lightning_modules.tasks.language.model import LanguageModel

__all__ = ["LanguageModel", "TextClassifier"]
