"""One small random model per architecture of the installed libraries: name → a function that builds it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

Build = Callable[[], tuple[nn.Module, object]]
LARGE = 60e6  # parameters from which on a model of timm is cut to two layers, where it takes a depth
SIZES = ("test_", "atto", "femto", "pico", "nano", "xx", "x_small", "xs", "tiny", "mini", "_t", "_0", "small", "_s")

# What a configuration of transformers calls its sizes → a small one. Lists (stages) and unknown names stay.
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth"),
    *("num_decoder_layers", "num_encoder_layers", "num_block_layers", "n_encoder_layers"),
    *("decoder_num_hidden_layers", "num_hidden_layers_decoder"),
)
_NAMES = {
    32: "hidden_size d_model n_embd embed_dim hidden_dim dim decoder_hidden_size word_embed_proj_dim",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
    " decoder_num_attention_heads num_attention_heads_decoder num_local_experts num_experts n_routed_experts"
    " moe_num_experts",
    8: "head_dim d_kv kv_channels attention_head_dim attention_head_size",
    64: "intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim n_inner ffn_hidden_size"
    " moe_intermediate_size shared_expert_intermediate_size mlp_dim decoder_intermediate_size",
    2: "num_experts_per_tok moe_top_k",
    120: "vocab_size",
}
MISSING = {  # settings that have no default, and that a model cannot do without
    "vocab_size": 120,
    "prediction_length": 4,
    "context_length": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "vocabulary_map": {"<image>": 4},
}
SPREAD = 0.2  # standard deviation of weights, so that maps of a width of 32 are not uniform
SMALL = {name: size for size, names in _NAMES.items() for name in names.split()}


def timm_models() -> dict[str, Build]:
    """Return the smallest model of every pair of class and family in which something is called attention."""
    import timm

    families: dict[tuple[str, str], list[str]] = {}
    for module in timm.list_modules():
        for name in timm.list_models(module=module):
            families.setdefault((module, re.split(r"[_\d]", name)[0]), []).append(name)
    smallest: dict[tuple[str, str], tuple[int, str]] = {}
    for (_, family), names in families.items():
        for name in sorted(names, key=_size)[:3]:
            try:
                with torch.device("meta"):
                    model = timm.create_model(name)
            except Exception:  # a model that cannot be built without memory
                continue
            words = " ".join(f"{inner} {type(part).__name__}" for inner, part in model.named_modules()).lower()
            if not re.search("attn|attention|transformer", words):
                continue
            size = sum(parameter.numel() for parameter in model.parameters())
            key = (type(model).__name__, family)
            smallest[key] = min(smallest.get(key, (size, name)), (size, name))
    return {name: partial(_of_timm, name, size) for size, name in smallest.values()}


def _of_timm(name: str, size: int) -> tuple[nn.Module, None]:
    import timm

    if size > LARGE:
        try:
            return timm.create_model(name, depth=2), None
        except TypeError:
            pass
    return timm.create_model(name), None


def _size(name: str) -> tuple:
    place = next((place for place, word in enumerate(SIZES) if word in name), len(SIZES))
    return place, int((re.findall(r"(\d{3})$", name) or ["224"])[0]), len(name), name


def transformers_models() -> dict[str, Build]:
    """Return the base model of every configuration."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return {name: partial(_of_transformers, name, model) for name, model in sorted(MODEL_MAPPING_NAMES.items())}


def transformers_with_heads() -> dict[str, Build]:
    """Return the model with a head for text, else for images, else the base model, with the host's own scales."""
    from transformers.models.auto import modeling_auto as auto

    heads = {
        **auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        **auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    models = {**auto.MODEL_MAPPING_NAMES, **{name: heads[name] for name in auto.MODEL_MAPPING_NAMES if name in heads}}
    return {name: partial(_of_transformers, name, model, None) for name, model in sorted(models.items())}


def _of_transformers(name: str, model: str | tuple[str, ...], spread: float | None = SPREAD) -> tuple[nn.Module, None]:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = small(CONFIG_MAPPING[name](), spread=spread)
    cls = getattr(transformers, model if isinstance(model, str) else model[0])
    return cls(config), None


def small(config: object, layers: int = 2, factor: int = 1, spread: float | None = SPREAD) -> object:
    """Make a configuration of transformers small, and those inside of it.

    Args:
        config: of the host; it is changed.
        layers: of each stack.
        factor: on widths and the vocabulary.
        spread: standard deviation of the weights; ``None`` for the host's own.
    """
    names = {config.attribute_map.get(name, name) for name in (*LAYERS, *SMALL)}
    counts = (held(config, name) for name in ("num_attention_heads", "n_head"))
    heads = next((count for count in counts if isinstance(count, int)), 0)
    groups = held(config, "num_key_value_heads")
    for name, value in MISSING.items():
        if hasattr(config, name) and getattr(config, name) is None:
            put(config, name, value)
    for name in names:
        value = held(config, name)
        staged = isinstance(held(config, "depths"), list | tuple)  # of stages there are as many as depths
        if isinstance(value, bool) or not isinstance(value, int) or (staged and name == "num_stages"):
            continue
        put(config, name, layers if name in LAYERS else _small(config, name, factor))
    if hasattr(config, "qk_rope_head_dim"):  # latent attention: part of a head is rotated, the other is not
        for name, size in (("qk_rope_head_dim", 4), ("qk_nope_head_dim", 4), ("qk_head_dim", 8), ("head_dim", 4)):
            if held(config, name) is not None:
                put(config, name, factor * size)
        for name in ("kv_lora_rank", "q_lora_rank", "v_head_dim"):
            if isinstance(held(config, name), int):
                put(config, name, 8)
    if isinstance(groups, int):
        config.num_key_value_heads = 4 if groups == heads else 2
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 0)
    for name in ("initializer_range", "init_std"):
        if spread is not None and isinstance(getattr(config, name, None), float):
            put(config, name, spread)
    if isinstance(held(config, "num_heads"), list | tuple) and isinstance(held(config, "embed_dim"), int):
        put(config, "embed_dim", 8 * config.num_heads[0])
    put_if_held(config, "num_kv_shared_layers", 0)
    put_if_held(config, "dim_model_base", 8)  # the width at which logits are as they are; a model is wider
    types = getattr(config, "layer_types", None)
    if isinstance(types, list | tuple) and types:
        kinds = list(dict.fromkeys(types))
        put(config, "layer_types", (kinds * layers)[: max(layers, len(kinds))])
        config.num_hidden_layers = len(config.layer_types)
    _mix(config)
    for part in vars(config).values():
        if hasattr(part, "attribute_map") and hasattr(part, "to_dict"):
            small(part, layers, factor, spread)
    return config


def _mix(config: object) -> None:
    """Make state-space layers of a small configuration fit its width, and the second layer of a hybrid attention."""
    expand = getattr(config, "mamba_expand", None) or getattr(config, "expand", None)
    if not isinstance(expand, int):
        return
    inner = expand * config.hidden_size
    sizes = {"mamba_n_heads": "mamba_d_head", "n_mamba_heads": "mamba_headdim", "num_heads": "head_dim"}
    for heads, width in sizes.items():
        if isinstance(getattr(config, heads, None), int) and isinstance(getattr(config, width, None), int):
            put(config, width, 8)
            put(config, heads, inner // 8)
    second = {"attn_layer_indices": [1], "attn_layer_period": 2, "attn_layer_offset": 1, "hybrid_layer_ids": [1]}
    for name, value in {**second, "attention_hidden_size": inner, "mamba_d_ssm": inner}.items():
        if hasattr(config, name):
            put(config, name, value)
    if set(getattr(config, "layer_types", None) or ()) == {"linear_attention"}:
        put(config, "layer_types", ["linear_attention", "full_attention"])


def calibrate(model: nn.Module, args: tuple, kwargs: dict) -> None:
    """Give the batch norms of a random model the statistics of the batch, or numbers vanish in its depth."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    before = [(norm.training, norm.momentum) for norm in norms]
    for norm in norms:
        norm.train().momentum = 1.0
    with contextlib.suppress(Exception), torch.no_grad():
        if norms:
            model(*args, **kwargs)
    for norm, (training, momentum) in zip(norms, before, strict=True):
        norm.train(training).momentum = momentum


def put(config: object, name: str, value: object) -> None:
    """Set a setting that a configuration keeps; one that it computes from others stays."""
    with contextlib.suppress(AttributeError, NotImplementedError):
        setattr(config, name, value)


def put_if_held(config: object, name: str, value: object) -> None:
    """Set a setting that a configuration has."""
    if held(config, name) is not None:
        put(config, name, value)


def held(config: object, name: str) -> object:
    """Return a setting of a configuration; ``None`` where it has none, or another one in each layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers' own class for settings that layers do not share
        return None


def _small(config: object, name: str, factor: int) -> int:
    backwards = {real: alias for alias, real in config.attribute_map.items()}
    size = SMALL[name] if name in SMALL else SMALL[backwards[name]]
    return size if size <= 4 else factor * size  # of heads and experts there are as many


def torchvision_models() -> dict[str, Build]:
    """Return torchvision's transformers of images and videos."""
    import torchvision.models as models

    def image(name: str, size: int = 224) -> tuple[nn.Module, torch.Tensor]:
        return getattr(models, name)(), torch.randn(1, 3, size, size)

    found = {name: partial(image, name) for name in ("vit_b_32", "swin_t", "swin_v2_t", "maxvit_t")}
    clip = torch.randn(1, 3, 16, 224, 224)
    found["mvit_v2_s"] = lambda: (models.video.mvit_v2_s(), clip)
    found["swin3d_t"] = lambda: (models.video.swin3d_t(), clip[:, :, :4])
    return found


def vit_pytorch_models() -> dict[str, Build]:
    """Return transformers of vit-pytorch that share the arguments of its ViT."""
    import importlib

    sizes = {"image_size": 64, "patch_size": 16, "num_classes": 5, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
    names = {
        "ViT": "vit", "SimpleViT": "simple_vit", "DeepViT": "deepvit", "SPTViT": "vit_for_small_dataset",
        "SimpleViTQKNorm": "simple_vit_with_qk_norm", "SimpleViTRegister": "simple_vit_with_register_tokens",
        "ParallelViT": "parallel_vit", "NormViT": "normalized_vit", "SimpleFlashViT": "simple_flash_attn_vit",
    }  # fmt: skip
    classes = {"SPTViT": "ViT", "SimpleViTQKNorm": "SimpleViT", "SimpleViTRegister": "SimpleViT", "ParallelViT": "ViT"}
    classes |= {"NormViT": "nViT", "SimpleFlashViT": "SimpleViT"}

    def build(name: str) -> tuple[nn.Module, torch.Tensor]:
        cls = getattr(importlib.import_module(f"vit_pytorch.{names[name]}"), classes.get(name, name))
        own = {**sizes, **({"num_parallel_branches": 2} if name == "ParallelViT" else {})}
        own |= {"use_flash": False} if name == "SimpleFlashViT" else {}
        return cls(**own), torch.randn(1, 3, 64, 64)

    def cait() -> tuple[nn.Module, torch.Tensor]:
        from vit_pytorch.cait import CaiT

        return CaiT(**sizes, cls_depth=1), torch.randn(1, 3, 64, 64)

    return {**{name: partial(build, name) for name in names}, "CaiT": cait}


def x_transformers_models() -> dict[str, Build]:
    """Return decoders and encoders of x-transformers with its usual options."""
    from x_transformers import Decoder, Encoder, TransformerWrapper

    def build(kind: type, **options: object) -> tuple[nn.Module, torch.Tensor]:
        layers = kind(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
        return TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers), torch.randint(0, 64, (1, 12))

    options = {
        "decoder": {}, "rotary": {"rotary_pos_emb": True}, "ALiBi": {"alibi_pos_bias": True},
        "T5 bias": {"rel_pos_bias": True}, "grouped keys": {"attn_kv_heads": 2}, "one key": {"attn_one_kv_head": True},
        "normalized": {"attn_qk_norm": True}, "flash": {"attn_flash": True}, "gated": {"attn_gate_values": True},
    }  # fmt: skip
    found = {name: partial(build, Decoder, **given) for name, given in options.items()}
    return {**found, "encoder": partial(build, Encoder)}


def open_clip_models() -> dict[str, Build]:
    """Return both towers of two models of open_clip."""
    import open_clip

    def build(name: str) -> tuple[nn.Module, tuple]:
        model = open_clip.create_model(name)
        size = model.visual.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return model, (torch.randn(1, 3, height, width), torch.randint(1, 1000, (1, model.context_length)))

    return {name: partial(build, name) for name in ("ViT-S-32-alt", "coca_base")}


LIBRARIES: dict[str, Callable[[], dict[str, Build]]] = {
    "timm": timm_models,
    "transformers": transformers_models,
    "torchvision": torchvision_models,
    "vit-pytorch": vit_pytorch_models,
    "x-transformers": x_transformers_models,
    "open_clip_torch": open_clip_models,
}


def installed_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return the version of every one of some libraries that is installed, and torch's."""
    found = {"torch": version("torch")}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
