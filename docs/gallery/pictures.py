"""Draw the pictures of the gallery again: ``make pictures``. None of them needs training."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from timm.models import VisionTransformer
from transformers import GPT2Config, GPT2LMHeadModel, Mamba2Config, Mamba2ForCausalLM

from callbacks.figures import map_figure, product_figure
from structured_init import Impulse, Mimetic, Positions, attention_sites, initialize
from structured_init.analysis import capture_attention, weight_products

HERE = Path(__file__).parent
WIDTH, DPI = 5.6, 160  # inches: labels of 9 points are read on a phone as well
INITIALIZERS = {
    "default": "default",
    "kaiming uniform": "kaiming_uniform",
    "sincos": Positions("sincos"),
    "codes": Positions("codes"),
    "mimetic": Mimetic(),
    "impulse": Impulse(kernel_size=3, solver="separable"),
}


def save(figure: Figure, name: str) -> None:
    """Write a picture of the width of all."""
    width, height = figure.get_size_inches()
    figure.set_size_inches(WIDTH, height * WIDTH / width)
    figure.savefig(HERE / f"{name}.png", dpi=DPI)


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
    save(map_figure(maps), "six_initializations")


def draw_weights() -> None:
    """Draw products of the weights of two layers of a ViT from the mimetic initialization."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2, num_classes=10)
    initialize(model, Mimetic(), seed=0)
    products = {site.name: weight_products(site) for site in attention_sites(model)}
    save(product_figure({"mimetic": products}, side=32), "weights")


def draw_previous_token() -> None:
    """Draw the first layer of a GPT-2 by default and from ``PreviousToken``: the mean of 16 random texts."""
    texts = torch.randint(128, (16, 32), generator=torch.Generator().manual_seed(0))
    config = GPT2Config(
        vocab_size=128, n_positions=64, n_embd=128, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None
    )
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots(2, 4)
    for row, (name, preset) in zip(
        axes, {"default": "default", "PreviousToken": "previous_token"}.items(), strict=True
    ):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
        initialize(model, preset, seed=0)
        first = next(iter(capture_attention(model, texts, max_samples=None).values()))
        for head, axis in enumerate(row):
            axis.imshow(first.mean(0)[head], cmap="magma", norm=PowerNorm(0.5, vmin=0, vmax=1))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, fontsize=12)
    for head, axis in enumerate(axes[0]):
        axis.set_title(f"head {head}", fontsize=12)
    save(figure, "previous_token")


def draw_implicit_attention() -> None:
    """Draw the implicit attention of a Mamba-2 on strings that come twice, from three initializations."""
    letters = torch.randint(28, (64, 8), generator=torch.Generator().manual_seed(0))
    strings = torch.cat([letters, letters], dim=1)
    sizes = {"hidden_size": 64, "num_heads": 4, "head_dim": 32, "n_groups": 1, "state_size": 32}
    presets = {"default": "default", "reference": "mamba_reference", "mimetic": "mimetic_state_space"}
    maps = {}
    for name, preset in presets.items():
        torch.manual_seed(0)
        model = Mamba2ForCausalLM(Mamba2Config(vocab_size=32, num_hidden_layers=2, **sizes))
        initialize(model, preset, seed=0)
        seen = capture_attention(model, strings, max_samples=None)
        maps[name] = {layer: of_samples.mean(0) for layer, of_samples in seen.items()}
    save(map_figure(maps, max_heads=1), "implicit_attention")


if __name__ == "__main__":
    draw_attention()
    draw_weights()
    draw_previous_token()
    draw_implicit_attention()
