"""The shipped recipes of compact transformers against the published numbers, and the variants of the token softmax."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.cli.configurations import config_names, find_config
from lightning_modules.networks import create_network

IMAGES = [name for name in config_names() if name.startswith("experiment/cct_")]
# network, epochs, lr, weight decay, warmup lr, batch, random erasing: configs/pretrained and examples/main.py
PUBLISHED = {
    "cct_2_3x2_cifar10": ("cct_2_3x2_32", 200, 5e-4, 3e-2, 1e-4, 128, 0),  # the script starts at lr / 5
    "cct_7_3x1_cifar10_300": ("cct_7_3x1_32", 300, 5.5e-4, 6e-2, 1e-5, 128, 0),
}


def content(name):
    return find_config(name).content()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_published_numbers(name):
    whole = content(f"experiment/{name}")
    model, data = whole["model"]["init_args"], whole["data"]["init_args"]
    optimizer = model["optimizer"]["init_args"]
    epochs, erasing = whole["trainer"]["max_epochs"], data.get("random_erasing", 0)
    found = (model["network"], epochs, optimizer["lr"], optimizer["weight_decay"], model["warmup_lr"])
    assert (*found, data["batch_size"], erasing) == PUBLISHED[name]
    assert model["label_smoothing"] == 0.1


@pytest.mark.parametrize("name", IMAGES)
def test_the_network_of_a_recipe_fits_its_data(name):
    whole = content(name)
    model, data = whole["model"]["init_args"], whole["data"]["init_args"]
    sizes = {key: data[key] for key in ("num_classes", "image_size", "in_channels")}
    with torch.device("meta"):
        network = create_network(model["network"], **sizes, **model.get("network_args", {}))
    assert network.encoder.head.out_features == sizes["num_classes"]
    assert network.tokenizer.conv_layers[0][0].in_channels == sizes["in_channels"]
