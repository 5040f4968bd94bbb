"""Networks by name: presets, compact transformers, ConvMixers, 1-Lipschitz networks, and every model of timm."""

from __future__ import annotations

from lightning_modules.networks.compact_transformer import (
    COMPACT_TRANSFORMERS,
    TEXT_COMPACT_TRANSFORMERS,
    CompactTransformer,
    TextCompactTransformer,
    compact_transformer,
    text_compact_transformer,
)
from lightning_modules.networks.convolutional import CONVMIXERS, convmixer
from lightning_modules.networks.factory import create_network, network_names
from lightning_modules.networks.lipschitz import LIPSCHITZ_NETWORKS
from lightning_modules.networks.token_softmax import place_token_softmax
from lightning_modules.networks.vision_transformer import PRESETS, vision_transformer

__all__ = [
    "COMPACT_TRANSFORMERS",
    "CONVMIXERS",
    "LIPSCHITZ_NETWORKS",
    "PRESETS",
    "TEXT_COMPACT_TRANSFORMERS",
    "CompactTransformer",
    "TextCompactTransformer",
    "compact_transformer",
    "convmixer",
    "create_network",
    "network_names",
    "place_token_softmax",
    "text_compact_transformer",
    "vision_transformer",
]
