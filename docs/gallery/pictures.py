"""Make the pictures of the gallery again that need no training: ``python docs/gallery/pictures.py``."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from sklearn.datasets import load_digits
from timm.models import VisionTransformer

from callbacks.figures import map_figure, product_figure
from structured_init import Impulse, Mimetic, Positions, attention_sites, initialize
from structured_init.analysis import capture_attention, weight_products

HERE = Path(__file__).parent
INITIALIZERS = {
    "default": "default",
    "kaiming uniform": "kaiming_uniform",
    "sincos": Positions("sincos"),
    "codes": Positions("codes"),
    "mimetic": Mimetic(),
    "impulse": Impulse(kernel_size=3, solver="separable"),
}


def draw_attention() -> None:
    """Draw the first head of every layer of a small ViT on digits before training, from six initializations."""
    images = torch.tensor(load_digits().images[:64, None], dtype=torch.float32) / 16
    maps = {}
    for name, initializer in INITIALIZERS.items():
        torch.manual_seed(0)
        model = VisionTransformer(8, 2, in_chans=1, num_classes=10, embed_dim=64, depth=4, num_heads=4)
        initialize(model, initializer, seed=0)
        seen = capture_attention(model, images)
        maps[name] = {layer: of_samples.mean(0)[:1] for layer, of_samples in seen.items()}
    map_figure(maps).savefig(HERE / "six_initializations.png", dpi=110)


def draw_weights() -> None:
    """Draw products of the weights of two layers of a ViT from the mimetic initialization."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2, num_classes=10)
    initialize(model, Mimetic(), seed=0)
    products = {site.name: weight_products(site) for site in attention_sites(model)}
    product_figure({"mimetic": products}, side=32).savefig(HERE / "weights.png", dpi=110)


if __name__ == "__main__":
    draw_attention()
    draw_weights()
