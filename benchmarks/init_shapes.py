"""The networks whose initialization is timed, at their published sizes, and what applies to each.

Letters: D width, H heads, Hkv key–value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from timm.models.convmixer import ConvMixer
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MambaConfig,
    MambaForCausalLM,
)

from lightning_modules.networks.vision_transformer import vision_transformer
from structured_init import (
    Conditioned,
    DeltaOrthogonal,
    FilterCovariance,
    Impulse,
    Initializer,
    KaimingUniform,
    Mimetic,
    MimeticStateSpace,
    MlpMean,
    Skipless,
    TruncatedNormal,
)

HEAD_DIM = 128  # of every Llama
GROUP = 8  # query heads that share a key in Llama-70B
MLP_RATIO = 3.5  # of Llama-70B's MLP to its width

INITIALIZATIONS: dict[str, Initializer] = {
    "kaiming_uniform": KaimingUniform(),
    "truncated_normal": TruncatedNormal(),
    "mlp_mean": MlpMean(0.01),
    "conditioned": Conditioned(),
    "mimetic, float32": Mimetic(positions="keep", precision="float32"),
    "mimetic": Mimetic(positions="keep"),
    "skipless": Skipless(),
    "delta_orthogonal": DeltaOrthogonal(),
    "separable": Impulse(solver="separable"),
    "svd": Impulse(solver="svd"),
    "mimetic_state_space": MimeticStateSpace(),
    "covariance": FilterCovariance(),
}
# The two parts of an initialization whose cost grows differently: one for each group of heads, one for each layer.
PARTS: dict[str, dict[str, Initializer]] = {
    name: {"group": kind(value_output=False, **arguments), "values": kind(query_key=False, **arguments)}
    for name, kind, arguments in (
        ("mimetic, float32", Mimetic, {"positions": "keep", "precision": "float32"}),
        ("mimetic", Mimetic, {"positions": "keep"}),
        ("skipless", Skipless, {}),
    )
}
LANGUAGE = ("kaiming_uniform", "truncated_normal", "mlp_mean", "conditioned", "mimetic, float32")
VISION = ("separable", "svd", "mimetic", "skipless", "delta_orthogonal", *LANGUAGE)


@dataclass(frozen=True)
class Network:
    """A published network that can be built at any depth.

    Attributes:
        build: makes it with this many layers.
        layers: how many it has.
        initializations: names of those timed on it.
    """

    build: Callable[[int], nn.Module]
    layers: int
    initializations: tuple[str, ...]


def gpt2(width: int, heads: int, layers: int) -> nn.Module:
    """GPT-2 without its vocabulary, which no initialization of attention touches."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=16, n_embd=width, n_head=heads, n_layer=layers))


def mamba(width: int, layers: int) -> nn.Module:
    """Mamba without its vocabulary."""
    return MambaForCausalLM(MambaConfig(vocab_size=8, hidden_size=width, num_hidden_layers=layers))


def llama(width: int, heads: int, key_value_heads: int, mlp: int, layers: int = 1, vocab: int = 8) -> nn.Module:
    """Llama in bfloat16."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=HEAD_DIM,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def replica(width: int, layers: int = 1) -> nn.Module:
    """Llama-70B at a smaller width: heads, key–value heads and MLP shrink with it. 8192 is Llama-70B."""
    return llama(width, width // HEAD_DIM, width // HEAD_DIM // GROUP, int(MLP_RATIO * width), layers)


def group_of_heads(width: int, group: int = GROUP) -> nn.Module:
    """The attention of the queries that share one key; the MLP is left out."""
    return llama(width, group, 1, 8)


def attention_alone(width: int) -> nn.Module:
    """A replica without its MLP."""
    return llama(width, width // HEAD_DIM, width // HEAD_DIM // GROUP, 8)


def blank(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model and fill it with a constant: it takes as long to initialize, and a large one is there at once."""
    with torch.device("meta"):
        model = build()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(0.02 if tensor.is_floating_point() else 0)
    return model


def _vit(patch: int, width: int, heads: int, layers: int) -> nn.Module:
    return vision_transformer(224, patch, width, layers, heads)


def _convmixer(layers: int) -> nn.Module:
    return ConvMixer(1536, layers, kernel_size=9, patch_size=7, num_classes=1000)


NETWORKS: dict[str, Network] = {
    **{
        f"ViT-{size}/{patch}": Network(partial(_vit, patch, width, heads), layers, VISION)
        for size, patch, width, heads, layers in (
            ("T", 16,  192,  3, 12),
            ("S", 16,  384,  6, 12),
            ("B", 16,  768, 12, 12),
            ("L", 16, 1024, 16, 24),
            ("H", 14, 1280, 16, 32),
        )
    },
    **{
        f"GPT-2 {size}": Network(partial(gpt2, width, heads), layers, LANGUAGE)
        for size, width, heads, layers in (
            ("small",   768, 12, 12),
            ("medium", 1024, 16, 24),
            ("large",  1280, 20, 36),
            ("XL",     1600, 25, 48),
        )
    },
    **{
        f"Mamba {size}": Network(partial(mamba, width), layers, ("mimetic_state_space",))
        for size, width, layers in (
            ("130M",  768, 24),
            ("370M", 1024, 48),
            ("790M", 1536, 48),
            ("1.4B", 2048, 48),
            ("2.8B", 2560, 64),
        )
    },
    "ConvMixer-1536/20": Network(_convmixer, 20, ("covariance",)),
}  # fmt: skip
