"""The shipped recipe of a compact transformer against the published numbers."""

from __future__ import annotations

from lightning_modules.cli.configurations import find_config


def test_the_recipe_has_the_published_numbers():
    """SHI-Labs/Compact-Transformers at cd11f09, configs/pretrained."""
    whole = find_config("cct_7_3x1_cifar10_300").content()
    model, data = whole["model"]["init_args"], whole["data"]["init_args"]
    optimizer = model["optimizer"]["init_args"]
    assert (model["network"], whole["trainer"]["max_epochs"]) == ("cct_7_3x1_32", 300)
    assert (optimizer["lr"], optimizer["weight_decay"], model["warmup_lr"]) == (5.5e-4, 6e-2, 1e-5)
    assert (data["batch_size"], model["label_smoothing"]) == (128, 0.1)
