"""Networks by name: this project's presets, and every model of timm."""

from __future__ import annotations

from lightning_modules.networks.factory import create_network, network_names
from lightning_modules.networks.vision_transformer import PRESETS, vision_transformer

__all__ = ["PRESETS", "create_network", "network_names", "vision_transformer"]
