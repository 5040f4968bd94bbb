"""The token-softmax value in networks of timm and transformers."""

from __future__ import annotations

from lightning_modules.networks.token_softmax.place import place_token_softmax

__all__ = ["place_token_softmax"]
