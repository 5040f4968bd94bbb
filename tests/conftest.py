"""What every test file shares: one thread per process, no network, and small models."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def tiny_vit():
    """A factory of timm vision transformers: 8×8 pixels, patch 2, 4×4 tokens, width 16, 2 heads, 2 layers."""
    from timm.models.vision_transformer import VisionTransformer

    def build(seed=0, **changes):
        arguments = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return VisionTransformer(**{**arguments, **changes})

    return build


@pytest.fixture
def as_installed():
    """Switch the tests' type checker off, to see what a user sees who passes a wrong value."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
