"""Tasks on text: models of language, causal and masked, and classifiers."""

from __future__ import annotations

from lightning_modules.language.classifier import TextClassifier
from lightning_modules.language.model import LanguageModel

__all__ = ["LanguageModel", "TextClassifier"]
