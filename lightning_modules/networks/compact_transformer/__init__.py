"""Compact Transformers: ViT-Lite, CVT and CCT in every published size, for images and for text.

Source: Hassani et al., "Escaping the Big Data Paradigm with Compact Transformers", arXiv 2104.05704.
"""

from __future__ import annotations

from lightning_modules.networks.compact_transformer.layers import CompactEncoder
from lightning_modules.networks.compact_transformer.networks import CompactTransformer, TextCompactTransformer
from lightning_modules.networks.compact_transformer.published import (
    COMPACT_TRANSFORMERS,
    TEXT_COMPACT_TRANSFORMERS,
    compact_arguments,
    compact_transformer,
    load_weights,
    text_arguments,
    text_compact_transformer,
)

__all__ = [
    "COMPACT_TRANSFORMERS",
    "TEXT_COMPACT_TRANSFORMERS",
    "CompactEncoder",
    "CompactTransformer",
    "TextCompactTransformer",
    "compact_arguments",
    "compact_transformer",
    "load_weights",
    "text_arguments",
    "text_compact_transformer",
]
