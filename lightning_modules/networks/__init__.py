"""Networks by name: this project's presets, 1-Lipschitz networks, and every model of timm."""

from __future__ import annotations

from lightning_modules.networks.factory import create_network, network_names
from lightning_modules.networks.lipschitz import LIPSCHITZ_NETWORKS
from lightning_modules.networks.vision_transformer import PRESETS, vision_transformer

__all__ = ["LIPSCHITZ_NETWORKS", "PRESETS", "create_network", "network_names", "vision_transformer"]
