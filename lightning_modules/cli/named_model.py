"""Models by their names, for ``show``, ``audit`` and ``list``: of timm or of transformers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import timm
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_modules.cli.configurations import config_names, shipped_file
from structured_init.presets import split_overrides
from structured_init.util.errors import StructuredInitError, nearest, one_line

MOST = 3 * 10**9  # numbers of a model that is built to be looked at: 12 GB


class NamedModel(LightningModule):
    """A model by its name, with fresh weights.

    Args:
        name: of a model of timm; a model type of transformers, such as ``gpt2``, whose configuration is then the
            library's own; or a ``config.json`` of transformers, or the folder that holds one.
        args: what ``timm.create_model`` is given, such as ``num_classes``; of transformers, settings of the
            configuration.

    Raises:
        StructuredInitError: there is no such model, or one too large to be built here.
    """

    def __init__(self, name: str, args: dict[str, Any] | None = None) -> None:
        super().__init__()
        if timm.is_model(name) and not Path(name).exists():
            self.network = timm.create_model(name, **args or {})
        else:
            self.network = _of_transformers(name, args or {})


def _of_transformers(name: str, args: dict[str, Any]) -> nn.Module:
    config = _configuration(name, args)
    build = _builder(config)
    with torch.device("meta"):
        size = sum(each.numel() for each in build(config).parameters())
    if size > MOST:
        raise StructuredInitError(f"'{name}' has {size:,} parameters: give a config.json with fewer layers")
    return build(config)


def _configuration(name: str, args: dict[str, Any]) -> Any:
    """Return a configuration of transformers: of a file, a folder that holds ``config.json``, or a model type."""
    import transformers

    if Path(name).exists():
        try:
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **args)
        except Exception as error:  # no JSON, or a value that the class refuses, by an error of its own
            raise StructuredInitError(f"'{name}' is no configuration of transformers: {one_line(error)}") from error
    if name in transformers.CONFIG_MAPPING:
        return transformers.AutoConfig.for_model(name, **args)
    shipped = [each.partition("/")[2] for each in config_names()]
    known = {*map(str, Path().glob("*.json")), *timm.list_models(), *transformers.CONFIG_MAPPING, *shipped}
    raise StructuredInitError(f"there is no file, configuration or model '{name}': {nearest(name, known)}")


def _builder(config: Any) -> Callable[[Any], nn.Module]:
    """Return what builds the class that a configuration names, else the first kind of model that there is of it."""
    import transformers

    if config.architectures and hasattr(transformers, config.architectures[0]):
        return getattr(transformers, config.architectures[0])
    for auto in (
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForMaskedLM,
        transformers.AutoModelForCausalLM,
    ):
        if type(config) in auto._model_mapping:
            return auto.from_config
    return transformers.AutoModel.from_config


def by_position(args: list[str]) -> list[str]:
    """Return a command line with the names behind ``show`` and ``audit`` as options: a model, then initializations."""
    names = list(takewhile(lambda word: not word.startswith("-"), args[1:]))
    words = []
    for name in names:
        words += ["-c", name]
    if names and not is_configuration(names[0]):
        words[:2] = [f"--model={__name__}.{NamedModel.__name__}", f"--model.name={names[0]}"]
    return [args[0], *words, *args[1 + len(names) :]]


def is_configuration(name: str) -> bool:
    """Tell whether a name is that of a configuration, and not of a model."""
    stem = split_overrides(name)[0]
    return Path(stem).suffix in (".yaml", ".yml") or shipped_file(stem) is not None
