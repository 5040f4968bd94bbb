"""What a model can be run on where nobody gave a batch: what its host library says about its own inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

BATCH = 2
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def as_inputs(batch: Any) -> Inputs:
    """Return a batch as what a model is called with: a mapping by name, a tuple in order, anything else alone."""
    if isinstance(batch, tuple | list):
        return tuple(batch), {}
    try:
        return (), dict(**batch)  # a dict, or transformers' BatchEncoding
    except TypeError:
        return (batch,), {}


def host_inputs(model: nn.Module, seed: int = 0) -> Inputs | None:
    """Return inputs that the host library names, drawn from N(0, 1); ``None`` where it says nothing.

    A model of transformers has ``dummy_inputs``, or takes ``pixel_values`` of its configuration's size; one of timm has
    the size of its images in ``patch_embed`` or ``pretrained_cfg``.

    Args:
        model: any module.
        seed: of the draws; the global random state is left alone.
    """
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters(), None)
    place = {} if parameter is None else {"device": parameter.device, "dtype": parameter.dtype}
    main, config = getattr(model, "main_input_name", None), getattr(model, "config", None)
    if main == "pixel_values":
        channels, size = getattr(config, "num_channels", 3), _pair(getattr(config, "image_size", None))
        return (
            None if size is None else ((), {main: torch.randn(BATCH, channels, *size, generator=generator).to(**place)})
        )
    if main == "input_ids" and isinstance(getattr(model, "dummy_inputs", None), dict):
        given = {key: _to(value, parameter) for key, value in model.dummy_inputs.items()}
        return (), given
    size = _timm_size(model)
    return None if size is None else ((torch.randn(BATCH, *size, generator=generator).to(**place),), {})


def _timm_size(model: nn.Module) -> tuple[int, ...] | None:
    """Return channels, height and width that a model of timm was built for."""
    cfg = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if not hasattr(cfg, "get") or cfg.get("input_size") is None:
        return None
    channels, *size = cfg.get("input_size")
    first = next((each.weight for each in model.modules() if isinstance(each, nn.Conv2d)), None)
    channels = channels if first is None else first.shape[1]
    built = _pair(getattr(getattr(model, "patch_embed", None), "img_size", None))
    return (channels, *(built or size))


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    return tuple(size) if isinstance(size, tuple | list) and len(size) == 2 else None


def _to(value: Any, parameter: Tensor | None) -> Any:
    return value.to(parameter.device) if isinstance(value, Tensor) and parameter is not None else value
