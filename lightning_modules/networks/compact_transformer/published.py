"""What is published of compact transformers: what their names say, and weights of the public code or ours, at any size.

``cct_7_3x1_32``: kind, depth, tokenizer (``<kernel>x<layers>`` for CCT, the patch for ViT-Lite and CVT), image size;
then ``_sine`` for fixed positions or ``_none`` for none, and ``_c100`` or ``_fl`` for the classes of CIFAR-100 or
Flowers-102. ``text_cct_4_1x1``: the same without an image size, and the tokenizer may be left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.layers import CompactEncoder, interpolated
from structured_init.errors import StructuredInitError
from structured_init.transfer.teacher import opened, tensors_of

#                          depth:  heads  mlp_ratio  embed_dim
SIZES: dict[int, tuple[int, int, int]] = {
    2:  (2, 1, 128),
    4:  (2, 1, 128),
    6:  (4, 2, 256),
    7:  (4, 2, 256),
    8:  (4, 2, 256),
    14: (6, 3, 384),
}  # fmt: skip

COMPACT_TRANSFORMERS = (
    *(f"vit_lite_{depth}_4_32{sine}" for depth in (2, 4, 6, 7) for sine in ("", "_sine")),
    "vit_lite_7_8_32",   # the larger patches of the paper's tables
    "vit_lite_7_16_32",
    *(f"cvt_{depth}_4_32{sine}" for depth in (2, 4, 6, 7) for sine in ("", "_sine")),
    "cvt_7_8_32",
    *(f"cct_{size}_32" for size in ("2_3x2", "4_3x2", "6_3x1", "6_3x2", "7_3x1", "7_3x2")),
    *(f"cct_{size}_32_sine" for size in ("2_3x2", "4_3x2", "6_3x1", "6_3x2", "7_3x1", "7_3x2")),
    "cct_7_3x1_32_c100", "cct_7_3x1_32_sine_c100",
    "cct_7_7x2_224", "cct_7_7x2_224_sine", "cct_14_7x2_224", "cct_14_7x2_384", "cct_14_7x2_384_fl",
)  # fmt: skip

TEXT_COMPACT_TRANSFORMERS = tuple(
    f"text_{kind}_{depth}" for kind in ("cct", "cvt", "vit_lite", "transformer") for depth in (2, 4, 6)
)

_IMAGE = re.compile(
    r"(?P<kind>vit_lite|vit|cvt|cct)_(?P<depth>\d+)_(?P<tokenizer>\d+(?:x\d+)?)_(?P<image_size>\d+)"
    r"(?:_(?P<positions>sine|none))?(?:_(?P<classes>c100|fl))?"
)
_TEXT = re.compile(r"text_(?P<kind>vit_lite|vit|cvt|cct|transformer)_(?P<depth>\d+)(?:_(?P<tokenizer>\d+(?:x\d+)?))?")
_CLASSES = {"c100": 100, "fl": 102}


def compact_arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments of ``CompactTransformer`` that a published name says, or None for another name.

    ``vit_7_4_32``, as the public code has it, is ``vit_lite_7_4_32``. A name of the right form is refused where there
    is no such size or tokenizer.
    """
    found = _IMAGE.fullmatch(name)
    if found is None:
        return None
    depth, image_size = int(found["depth"]), int(found["image_size"])
    # Of the data that the public code has a network for: CIFAR-10, ImageNet or Flowers-102.
    usual = 10 if image_size < 224 else 1000 if depth == 14 else 102
    return {
        **_sizes(name, depth),
        **_tokenizer(name, found["kind"], found["tokenizer"]),
        "class_token": found["kind"].startswith("vit"),
        "image_size": image_size,
        "positions": found["positions"] or "learnable",
        "num_classes": _CLASSES.get(found["classes"]) or usual,
    }


def text_arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments of ``TextCompactTransformer`` that a name says, or None for another name.

    Without a tokenizer in the name, the kernel or patch is 4, as in the public code. CCT and CVT pool the sequence, the
    others have a class token. ``text_transformer_2`` has no tokenizer: its width is that of the embedding, 300, which
    its 2 or 4 heads divide. Names are refused as by :func:`compact_arguments`.
    """
    found = _TEXT.fullmatch(name)
    if found is None:
        return None
    kind = found["kind"]
    arguments = {**_sizes(name, int(found["depth"])), "class_token": kind not in ("cct", "cvt")}
    if kind == "transformer":
        if found["tokenizer"]:
            raise StructuredInitError(
                f"'{name}': a text_transformer has no tokenizer: text_transformer_{found['depth']}"
            )
        return {**arguments, "tokenizer": None, "embed_dim": None}
    default = "4x1" if kind == "cct" else "4"
    said = _tokenizer(name, kind, found["tokenizer"] or default)
    if said["conv_layers"] not in (None, 1):
        raise StructuredInitError(f"'{name}': text tokenizers have one convolution: text_cct_{found['depth']}_1x1")
    return {**arguments, "tokenizer": "conv" if kind == "cct" else "patch", "kernel_size": said["kernel_size"]}


def _sizes(name: str, depth: int) -> dict[str, int]:
    if depth not in SIZES:
        known = ", ".join(map(str, SIZES))
        raise StructuredInitError(f"'{name}': there is no size of {depth} layers: choose from {known}")
    heads, mlp_ratio, embed_dim = SIZES[depth]
    return {"depth": depth, "num_heads": heads, "mlp_ratio": mlp_ratio, "embed_dim": embed_dim}


def _tokenizer(name: str, kind: str, tokenizer: str) -> dict[str, Any]:
    kernel, _, layers = tokenizer.partition("x")
    if (kind == "cct") != bool(layers):
        right = "<kernel>x<layers>, as in 3x1" if kind == "cct" else "a patch size, as in 4"
        raise StructuredInitError(f"'{name}': the tokenizer of {kind} is {right}, not {tokenizer}")
    return {"kernel_size": int(kernel), "conv_layers": int(layers) if layers else None}


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
    named = isinstance(source, (str, os.PathLike))
    state = _with_our_names(tensors_of(opened(Path(source), "weights")) if named else source)
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
