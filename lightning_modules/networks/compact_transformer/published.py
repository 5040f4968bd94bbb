"""Compact transformers by their published names, with weights of the public code or ours, at any size.

``cct_7_3x1_32``: kind, depth, tokenizer (``<kernel>x<layers>`` for CCT, the patch for ViT-Lite and CVT), image size;
then ``_sine`` for fixed positions or ``_none`` for none. ``text_cct_4_1x1``: the same without an image size, and the
tokenizer may be left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.networks import CompactTransformer, TextCompactTransformer
from structured_init.transfer.teacher import opened, tensors_of
from structured_init.util.errors import StructuredInitError, nearest

SIZES: dict[str, dict[str, int]] = {
    "2":  {"depth": 2,  "num_heads": 2, "mlp_ratio": 1, "embed_dim": 128},
    "4":  {"depth": 4,  "num_heads": 2, "mlp_ratio": 1, "embed_dim": 128},
    "6":  {"depth": 6,  "num_heads": 4, "mlp_ratio": 2, "embed_dim": 256},
    "7":  {"depth": 7,  "num_heads": 4, "mlp_ratio": 2, "embed_dim": 256},
    "8":  {"depth": 8,  "num_heads": 4, "mlp_ratio": 2, "embed_dim": 256},
    "14": {"depth": 14, "num_heads": 6, "mlp_ratio": 3, "embed_dim": 384},
}  # fmt: skip

# Names to suggest; other sizes, kernels and images in the pattern work as well.
COMPACT_TRANSFORMERS = (
    "vit_lite_2_4_32", "vit_lite_4_4_32", "vit_lite_6_4_32", "vit_lite_7_4_32", "vit_lite_7_8_32", "vit_lite_7_16_32",
    "cvt_2_4_32", "cvt_4_4_32", "cvt_6_4_32", "cvt_7_4_32", "cvt_7_8_32",
    "cct_2_3x2_32", "cct_4_3x2_32", "cct_6_3x1_32", "cct_6_3x2_32", "cct_7_3x1_32", "cct_7_3x2_32", "cct_7_7x2_224",
    "cct_14_7x2_224", "cct_14_7x2_384",
)  # fmt: skip
TEXT_COMPACT_TRANSFORMERS = (
    "text_cct_2", "text_cct_4", "text_cct_6", "text_cvt_2", "text_cvt_4", "text_cvt_6",
    "text_vit_lite_2", "text_vit_lite_4", "text_vit_lite_6", "text_transformer_2", "text_transformer_4",
    "text_transformer_6",
)  # fmt: skip

# (?(conv)…) holds for CCT alone: its tokenizers have a number of layers.
_DEPTH = rf"(?P<depth>{'|'.join(SIZES)})"
_IMAGE = re.compile(
    rf"(?:(?P<conv>cct)|(?P<class_token>vit_lite|vit)|cvt)_{_DEPTH}_(?P<kernel>\d+)(?(conv)x(?P<layers>\d+))"
    r"_(?P<image_size>\d+)(?:_(?P<positions>sine|none))?"
)
_TEXT = re.compile(
    rf"text_(?:(?P<conv>cct)|(?P<plain>transformer)|(?P<cvt>cvt)|vit_lite|vit)_{_DEPTH}"
    r"(?(plain)|(?:_(?P<kernel>\d+)(?(conv)x1))?)"
)


def compact_arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments of ``CompactTransformer`` that a published name says, or None for another name.

    ``vit_7_4_32``, as the public code has it, is ``vit_lite_7_4_32``.
    """
    found = _IMAGE.fullmatch(name)
    if found is None:
        return None
    return {
        **SIZES[found["depth"]],
        "kernel_size": int(found["kernel"]),
        "conv_layers": int(found["layers"]) if found["conv"] else None,
        "class_token": found["class_token"] is not None,
        "image_size": int(found["image_size"]),
        "positions": found["positions"] or "learnable",
    }


def text_arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments of ``TextCompactTransformer`` that a name says, or None for another name.

    Without a tokenizer in the name, the kernel or patch is 4, as in the public code. CCT and CVT pool the sequence, the
    others have a class token. ``text_transformer_2`` has no tokenizer: its width is that of the embedding, 300, which
    its 2 or 4 heads divide.
    """
    found = _TEXT.fullmatch(name)
    if found is None:
        return None
    return {
        **SIZES[found["depth"]],
        "tokenizer": "conv" if found["conv"] else None if found["plain"] else "patch",
        "kernel_size": int(found["kernel"] or 4),
        "class_token": not (found["conv"] or found["cvt"]),
    }


def compact_transformer(
    name: str, *, weights: str | os.PathLike[str] | None = None, **arguments: Any
) -> CompactTransformer:
    """Build a compact transformer by its published name.

    Args:
        name: ``vit_lite_7_4_32``, ``cvt_7_4_32``, ``cct_7_3x1_32``, ``cct_14_7x2_224``, …: any of
            :data:`COMPACT_TRANSFORMERS`, or the same with other sizes.
        weights: a file of weights to begin with, of the public code or of ours; see :func:`load_weights`.
        arguments: of :class:`CompactTransformer`, ``image_size`` and ``num_classes`` among them; they win over the
            name's.

    Raises:
        StructuredInitError: an unknown name (the nearest is named), sizes that do not fit, weights of another network.
    """
    said = compact_arguments(name)
    if said is None:
        raise StructuredInitError(f"unknown compact transformer '{name}': {nearest(name, COMPACT_TRANSFORMERS)}")
    network = CompactTransformer(**{**said, **arguments})
    if weights is not None:
        load_weights(network, weights)
    return network


def text_compact_transformer(
    name: str, *, vocab_size: int, num_classes: int, weights: str | os.PathLike[str] | None = None, **arguments: Any
) -> TextCompactTransformer:
    """Build a compact transformer for text by its name, with weights to begin with from a file (:func:`load_weights`).

    The name is any of :data:`TEXT_COMPACT_TRANSFORMERS`, or one with its tokenizer: ``text_cct_4_1x1``,
    ``text_cvt_2_4``. Arguments of :class:`TextCompactTransformer` win over the name's.

    Raises:
        StructuredInitError: an unknown name (the nearest is named), sizes that do not fit, weights of another network.
    """
    said = text_arguments(name)
    if said is None:
        raise StructuredInitError(f"unknown compact transformer '{name}': {nearest(name, TEXT_COMPACT_TRANSFORMERS)}")
    network = TextCompactTransformer(vocab_size, num_classes, **{**said, **arguments})
    if weights is not None:
        load_weights(network, weights)
    return network


# Names of SHI-Labs/Compact-Transformers and of ours, applied in this order: its norm1 is our norm2.
NAMES = (
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
POSITIONS = "encoder.pos_embed"


def load_weights(network: nn.Module, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load weights of a trained compact transformer, in place.

    Learned positions of another grid are interpolated, sines are made for the new one, and a head for other classes is
    left as it was built.

    Args:
        network: a :class:`CompactTransformer` or :class:`TextCompactTransformer`.
        source: a state dict, or a file with one: ``.safetensors``, or what ``torch.save`` wrote, a checkpoint of
            Lightning or timm among it. No code in it is run.

    Returns:
        The names that were left as they were built.

    Raises:
        StructuredInitError: no such file, or not a state dict.
        RuntimeError: the weights belong to another network; torch names what differs.
    """
    given = tensors_of(source if isinstance(source, Mapping) else opened(Path(source), "weights"))
    # DataParallel and our LightningModules put a name in front.
    state = {re.sub(r"^(module|network|model)\.", "", name): tensor for name, tensor in given.items()}
    if any(name.startswith("classifier.") for name in state):
        state = {with_our_name(name): tensor for name, tensor in state.items()}
    encoder, own = network.get_submodule("encoder"), network.state_dict()
    if POSITIONS in state and encoder.positions == "sine":
        state[POSITIONS] = own[POSITIONS]
    elif POSITIONS in state and encoder.grid is not None:
        state[POSITIONS] = resample_abs_pos_embed(
            state[POSITIONS],
            list(encoder.grid),
            num_prefix_tokens=encoder.num_prefix_tokens,
            interpolation="bilinear",  # as published
            antialias=False,
        )
    left = []
    for name in ("encoder.head.weight", "encoder.head.bias"):
        if name in state and state[name].shape != own[name].shape:
            state[name] = own[name]
            left.append(name)
    network.load_state_dict(state)
    return tuple(left)


def with_our_name(name: str) -> str:
    """Return our name of a parameter of the public code."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name
