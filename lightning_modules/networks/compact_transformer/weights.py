"""Weights for compact transformers: those of the public code under its names, or ours; at any size, for any classes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.encoder import CompactEncoder
from lightning_modules.networks.compact_transformer.positions import interpolated
from structured_init.errors import StructuredInitError
from structured_init.saved import load_saved

# Names of SHI-Labs/Compact-Transformers and of ours, applied in this order: its norm1 is our norm2.
NAMES = (
    (r"^(module|network|model)\.", ""),  # DataParallel, our LightningModules
    (r"^classifier\.", "encoder."),
    (r"^embedder\.embeddings\.", "embedding."),
    (r"\.positional_emb$", ".pos_embed"),
    (r"\.class_emb$", ".cls_token"),
    (r"\.norm1\.", ".norm2."),
    (r"\.pre_norm\.", ".norm1."),
    (r"\.self_attn\.", ".attn."),
    (r"\.linear([12])\.", r".mlp.fc\1."),
    (r"\.attention_pool\.", ".pool.score."),
    (r"^encoder\.fc\.", "encoder.head."),
)
PUBLIC = re.compile(r"(^|\.)classifier\.")


def load_weights(network: nn.Module, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load weights of a trained compact transformer, in place.

    Learned positions of another grid are interpolated, sines are made for the new one, and a head for other classes is
    left as it was built, as is an α that the trained network did not have.

    Args:
        network: a :class:`CompactTransformer` or :class:`TextCompactTransformer`.
        source: a state dict, or a file with one: ``.safetensors``, or what ``torch.save`` wrote, a checkpoint of
            Lightning or timm among it. No code in it is run.

    Returns:
        The names that were left as they were built.

    Raises:
        StructuredInitError: no such file, not a state dict, or one of another network.
    """
    state = _with_our_names(_read(source) if isinstance(source, (str, os.PathLike)) else source)
    encoder = network.get_submodule("encoder")
    present = network.state_dict()
    _fit_positions(state, present, encoder)
    left = []
    for name, tensor in present.items():
        if name not in state and name.endswith(".alpha"):
            left.append(name)
        elif name.startswith("encoder.head.") and name in state and state[name].shape != tensor.shape:
            del state[name]
            left.append(name)
    for name in [*present, *state]:
        if name in left:
            continue
        if name not in state or name not in present:
            has, where = ("no ", "") if name not in state else ("", ", which this one lacks")
            raise StructuredInitError(f"the weights belong to another network: they have {has}'{name}'{where}")
        if state[name].shape != present[name].shape:
            raise StructuredInitError(
                f"the weights belong to another network: '{name}' has shape {tuple(state[name].shape)} there, "
                f"{tuple(present[name].shape)} here"
            )
    network.load_state_dict({**present, **state})
    return tuple(left)


def _read(path: str | os.PathLike[str]) -> Mapping[str, Tensor]:
    """Return the state dict in a file."""
    if not os.path.isfile(path):
        raise StructuredInitError(f"there is no file of weights '{path}'")
    try:
        if os.fspath(path).endswith(".safetensors"):
            return load_file(path)
        content = load_saved(path, f"cannot read weights '{path}'")
    except SafetensorError as error:
        raise StructuredInitError(f"cannot read weights '{path}': {error}") from error
    for key in ("state_dict", "model"):  # Lightning and timm; others
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise StructuredInitError(f"'{path}' holds no state dict: a dictionary of names and tensors")
    return content


def _with_our_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict under our names."""
    stripped = {re.sub(*NAMES[0], name): tensor for name, tensor in state.items()}
    if not any(PUBLIC.search(name) for name in stripped):
        return stripped
    renamed = {}
    for name, tensor in stripped.items():
        for pattern, replacement in NAMES[1:]:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def _fit_positions(state: dict[str, Tensor], present: dict[str, Tensor], encoder: CompactEncoder) -> None:
    """Bring positions of another length to the network's: sines are its own, learned ones are interpolated."""
    name = "encoder.pos_embed"
    if name not in state or name not in present or state[name].shape[1:] == present[name].shape[1:]:
        return
    if encoder.positions == "sine":
        state[name] = present[name]
    elif encoder.grid is not None and state[name].shape[-1] == present[name].shape[-1]:
        state[name] = interpolated(state[name], encoder.num_prefix_tokens, encoder.grid)
