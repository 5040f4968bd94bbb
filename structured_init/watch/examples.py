"""What a host library offers as an input of its models, for a look at them without the user's data."""

from __future__ import annotations

import torch
from torch import nn

from structured_init.errors import StructuredInitError
from structured_init.names import wrapped_child

SAMPLES, LENGTH = 1, 12
IMAGES, TEXT, AUDIO = "pixel_values", "input_ids", "input_values"


def example_batch(model: nn.Module) -> object:
    """Return a small batch that the model should take.

    timm says the size of its images, transformers the name of its main input, with sizes in the configuration. The
    numbers are drawn: an input of zeros makes all tokens equal.

    Raises:
        StructuredInitError: nothing tells what the model takes.
    """
    while (child := wrapped_child(model)) is not None:
        model = model._modules[child]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    settings = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(settings, dict) and "input_size" in settings:
        channels, *size = settings["input_size"]
        own = getattr(getattr(model, "patch_embed", None), "img_size", None)
        return numbers(SAMPLES, channels, *(own or size))
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is not None and main == IMAGES:
        sizes = _first(config, "image_size", default=224)
        height, width = (sizes, sizes) if isinstance(sizes, int) else sizes
        return {IMAGES: numbers(SAMPLES, _first(config, "num_channels", default=3), height, width)}
    if config is not None and main == TEXT:
        vocabulary = _first(config, "vocab_size", default=100)
        ids = torch.randint(3, max(4, vocabulary), (SAMPLES, LENGTH), generator=generator).to(device)
        batch = {TEXT: ids}
        if getattr(config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = ids.flip(1)
        return batch
    if config is not None and main == AUDIO:
        return {AUDIO: numbers(SAMPLES, 4000)}
    if isinstance(image_size := getattr(model, "image_size", None), int):  # torchvision, vit-pytorch
        return numbers(SAMPLES, 3, image_size, image_size)
    raise StructuredInitError(
        f"{type(model).__name__} does not say what it takes: give a batch, one or two samples, as batch=…"
    )


def _first(config: object, name: str, default: int) -> object:
    """Return a setting of a configuration or of the part of it that has the main input."""
    for part in (config, getattr(config, "vision_config", None), getattr(config, "text_config", None)):
        value = getattr(part, name, None)
        if value is not None:
            return value
    return default
