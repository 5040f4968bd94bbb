# ruff: noqa: D101  (what a class is, its name says)
"""Small models into which ``benchmarks.mutants`` puts bugs: name → a function that builds a model and its batch.

Those that are written here have a method ``init_weights`` that writes every parameter and buffer, as torchtitan's have;
``mlp``, ``lora`` and ``clip`` have none, as most models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.conformance_models import Build

WIDTH, HEADS, DEPTH, WORDS, LENGTH = 32, 4, 4, 64, 16


def words() -> Tensor:
    """Return the tokens of two sequences."""
    return torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def numbers(*shape: int) -> Tensor:
    """Return a batch of normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def rotary_table(base: float = 10_000.0, size: int = WIDTH // HEADS) -> Tensor:
    """Return angles (position, frequency)."""
    frequencies = base ** (-torch.arange(0, size, 2) / size)
    return torch.outer(torch.arange(LENGTH).float(), frequencies)


def sine_table(width: int = WIDTH) -> Tensor:
    """Return sines and cosines (1, position, width)."""
    angles = rotary_table(size=width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)[None]


class Attention(nn.Module):
    def __init__(self, normed: bool):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm = nn.RMSNorm(WIDTH // HEADS) if normed else nn.Identity()
        self.k_norm = nn.RMSNorm(WIDTH // HEADS) if normed else nn.Identity()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, angles: Tensor | None, causal: bool) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key = self.q_norm(query), self.k_norm(key)
        if angles is not None:
            query, key = rotated(query, angles), rotated(key, angles)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.proj(mixed.transpose(1, 2).flatten(2))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of numbers, those of the first half with those of the second."""
    one, other = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], dim=-1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Experts(nn.Module):
    """Four experts in one parameter, of which a router mixes all."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.w1 = nn.Parameter(torch.empty(4, WIDTH, 2 * WIDTH))
        self.w2 = nn.Parameter(torch.empty(4, 2 * WIDTH, WIDTH))
        self.register_buffer("expert_bias", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        shares = (self.router(x) + self.expert_bias).softmax(-1)
        inner = F.silu(torch.einsum("bnd,edh->bneh", x, self.w1))
        return torch.einsum("bneh,ehd,bne->bnd", inner, self.w2, shares)


class Block(nn.Module):
    def __init__(self, style: str):
        super().__init__()
        norm = nn.RMSNorm if style in ("llama", "moe") else nn.LayerNorm
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.attn = Attention(normed=style in ("llama", "vit"))
        self.mlp = Experts() if style == "moe" else Mlp()
        self.gate = nn.Parameter(torch.empty(WIDTH)) if style == "vit" else None
        self.modulation = nn.Linear(WIDTH, 3 * WIDTH) if style == "dit" else None

    def forward(self, x: Tensor, angles: Tensor | None, causal: bool, condition: Tensor | None) -> Tensor:
        gate = 1 if self.gate is None else self.gate
        shift = 0
        if self.modulation is not None:
            shift, scale, gate = self.modulation(F.silu(condition))[:, None].chunk(3, dim=-1)
            gate = gate * (1 + scale)
        x = x + gate * self.attn(self.norm1(x) + shift, angles, causal)
        return x + gate * self.mlp(self.norm2(x) + shift)


class Transformer(nn.Module):
    """A transformer in the ``style`` of gpt (learned positions, tied), llama and moe (rotary), dit or vit."""

    def __init__(self, style: str):
        super().__init__()
        self.language = style in ("gpt", "llama", "moe")
        self.embed = nn.Embedding(WORDS, WIDTH) if self.language else nn.Linear(12, WIDTH)
        self.pos_embed = nn.Parameter(torch.empty(1, LENGTH, WIDTH)) if style in ("gpt", "vit") else None
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH)) if style == "vit" else None
        self.register_buffer("sines", sine_table() if style == "dit" else None)
        self.register_buffer("angles", rotary_table() if style in ("llama", "moe") else None, persistent=False)
        self.time = nn.Linear(1, WIDTH) if style == "dit" else None
        self.blocks = nn.ModuleList(Block(style) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 12 if style == "dit" else WORDS, bias=style == "dit")
        if style == "gpt":
            self.head.weight = self.embed.weight
        self.init_weights()

    def init_weights(self) -> None:
        for name, parameter in self.named_parameters():
            kind = name.split(".")[-1]
            if "norm" in name and kind == "weight":
                nn.init.ones_(parameter)
            elif kind == "bias" or "modulation" in name or (self.time is not None and name == "head.weight"):
                nn.init.zeros_(parameter)
            elif kind == "gate":
                nn.init.constant_(parameter, 0.1)
            elif name.endswith(("proj.weight", "fc2.weight", "w2")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * DEPTH))
            else:
                nn.init.normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, Experts):
                module.expert_bias.zero_()
        if self.sines is not None:
            self.sines.copy_(sine_table())
        if self.angles is not None:
            self.angles.copy_(rotary_table())
        if self.head.weight.shape == self.embed.weight.shape and self.pos_embed is not None and self.language:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        if self.pos_embed is not None:
            x = x + self.pos_embed
        if self.sines is not None:
            x = x + self.sines
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        condition = None if time is None else self.time(time)
        for block in self.blocks:
            x = block(x, self.angles, self.language, condition)
        x = self.head(self.norm(x))
        return x[:, 0] if self.cls_token is not None else x


class Scan(nn.Module):
    """A diagonal state space with a causal convolution, as in Mamba, with steps that do not depend on the input."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.in_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.conv1d = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
        self.A_log = nn.Parameter(torch.empty(WIDTH, 8))
        self.dt_bias = nn.Parameter(torch.empty(WIDTH))
        self.C = nn.Parameter(torch.empty(WIDTH, 8))
        self.D = nn.Parameter(torch.empty(WIDTH))
        self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1d(self.in_proj(self.norm(x)).mT)[..., : x.shape[1]]
        step = F.softplus(self.dt_bias)
        exponents = -self.A_log.exp() * step[:, None]
        powers = torch.exp(exponents[..., None] * torch.arange(x.shape[1], device=x.device))
        kernel = torch.einsum("dn,dnt->dt", self.C, powers) * step[:, None]
        lags = torch.arange(x.shape[1], device=x.device)
        lags = lags[:, None] - lags
        matrix = kernel[:, lags.clamp(min=0)] * (lags >= 0)
        return x + self.out_proj((torch.einsum("dts,bds->bdt", matrix, inner) + self.D[:, None] * inner).mT)


class Scans(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Scan() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        for each in (self.embed, self.head):
            nn.init.normal_(each.weight, std=0.02)
        self.norm.reset_parameters()
        for layer in self.layers:
            for each in (layer.norm, layer.in_proj, layer.conv1d, layer.out_proj):
                each.reset_parameters()
            layer.A_log.copy_(torch.arange(1, 9).float().log().expand(WIDTH, 8))
            step = torch.exp(torch.rand(WIDTH) * math.log(100) + math.log(0.001))
            layer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
            nn.init.normal_(layer.C, std=8**-0.5)
            nn.init.ones_(layer.D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        nn.init.normal_(self.embed.weight, std=0.1)
        self.embed.weight[0] = 0
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        for name, parameter in self.lstm.named_parameters():
            if "weight_hh" in name:
                for part in parameter.chunk(4):
                    nn.init.orthogonal_(part)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
                if "bias_ih" in name:
                    parameter.chunk(4)[1].fill_(1)  # the gate that keeps what there is

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResidualNet(nn.Module):
    """Convolutions by Kaiming's rule, and a last norm of zero in each block."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(Residual(16) for _ in range(DEPTH))
        self.head = nn.Linear(16, 10)
        self.init_weights()

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
        for block in self.blocks:
            nn.init.zeros_(block.bn2.weight)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class LowRank(nn.Module):
    """A frozen linear layer and what is added to it, of which one factor is zero."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(4, WIDTH))
        self.lora_B = nn.Parameter(torch.zeros(WIDTH, 4))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.base(x) + x @ self.lora_A.T @ self.lora_B.T)


class Embedder(nn.Module):
    """Two towers and a temperature, as in CLIP."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, WIDTH, 8, stride=8), nn.Flatten(), nn.Linear(16 * WIDTH, WIDTH))
        self.text = nn.Embedding(WORDS, WIDTH)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        one, other = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text).mean(1), dim=-1)
        return self.logit_scale.exp() * one @ other.T


def written_here() -> dict[str, Build]:
    """Return the models of this file."""
    image = numbers(2, 3, 32, 32)

    def mlp() -> nn.Module:
        hidden = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, 10))

    def adapted() -> nn.Module:
        return nn.Sequential(*(LowRank() for _ in range(3)), nn.Linear(WIDTH, 10))

    found: dict[str, tuple[Callable[[], nn.Module], object]] = {
        "gpt": (partial(Transformer, "gpt"), words()),
        "llama": (partial(Transformer, "llama"), words()),
        "moe": (partial(Transformer, "moe"), words()),
        "dit": (partial(Transformer, "dit"), (numbers(2, LENGTH, 12), numbers(2, 1))),
        "vit": (partial(Transformer, "vit"), numbers(2, LENGTH, 12)),
        "scans": (Scans, words()),
        "lstm": (Recurrent, words()),
        "resnet": (ResidualNet, image),
        "mlp": (mlp, numbers(4, WIDTH)),
        "lora": (adapted, numbers(4, WIDTH)),
        "clip": (Embedder, (image, words())),
    }
    return {name: lambda made=made: (made[0](), made[1]) for name, made in found.items()}


def of_timm() -> dict[str, Build]:
    """Return small models of timm."""
    from timm import models

    image = numbers(2, 3, 32, 32)
    sizes = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": WIDTH, "depth": 4, "num_heads": HEADS}
    stages = {"num_classes": 10, "depths": (1, 1, 3, 1), "dims": (8, 16, 24, 32)}
    found = {
        "vit": (models.VisionTransformer, sizes),
        "vit with layer scale": (models.VisionTransformer, {**sizes, "init_values": 1e-5, "qk_norm": True}),
        "eva": (models.Eva, {**sizes, "use_rot_pos_emb": True, "use_abs_pos_emb": False}),
        "beit": (models.Beit, {**sizes, "init_values": 0.1, "use_rel_pos_bias": True, "use_abs_pos_emb": False}),
        "cait": (models.Cait, sizes),
        "mixer": (models.MlpMixer, {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 32,
                                    "num_blocks": 4}),
        "convnext": (models.ConvNeXt, stages),
        "swin": (models.SwinTransformer, {"img_size": 32, "patch_size": 2, "window_size": 4, "num_classes": 10,
                                          "embed_dim": 16, "depths": (2, 3), "num_heads": (2, 4)}),
    }  # fmt: skip
    return {name: lambda made=made: (made[0](**made[1]), image) for name, made in found.items()}


def of_transformers() -> dict[str, Build]:
    """Return small models of transformers, with their libraries' own scales."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from benchmarks.conformance_models import small

    transformers.logging.set_verbosity_error()
    classes = {
        "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "bert": "BertForMaskedLM", "opt": "OPTForCausalLM",
        "gpt_neox": "GPTNeoXForCausalLM", "mixtral": "MixtralForCausalLM", "mamba": "MambaForCausalLM",
        "mamba2": "Mamba2ForCausalLM", "gemma": "GemmaForCausalLM", "bloom": "BloomForCausalLM",
    }  # fmt: skip

    def build(kind: str) -> tuple[nn.Module, Tensor]:
        config = small(CONFIG_MAPPING[kind](), layers=DEPTH, spread=None)
        if kind == "gpt_neox":
            config.rope_parameters["partial_rotary_factor"] = 1.0  # a quarter of a head of 8 is a single angle
        return getattr(transformers, classes[kind])(config), words()

    return {name: partial(build, name) for name in classes}


def of_torchvision() -> dict[str, Build]:
    """Return small models of torchvision."""
    from torchvision import models

    image = numbers(2, 3, 32, 32)
    vit = {"image_size": 32, "patch_size": 8, "num_layers": 4, "num_heads": HEADS, "hidden_dim": WIDTH, "mlp_dim": 64}
    inverted = [[1, 16, 1, 1], [4, 64, 4, 2]]  # expansion, width, blocks, stride
    settings = [models.convnext.CNBlockConfig(16, 32, 2), models.convnext.CNBlockConfig(32, None, 3)]
    found = {
        "vit": (models.VisionTransformer, {**vit, "num_classes": 10}),
        "convnext": (models.ConvNeXt, {"block_setting": settings, "num_classes": 10}),
        "mobilenet": (models.MobileNetV2, {"num_classes": 10, "width_mult": 0.25,
                                           "inverted_residual_setting": inverted}),
        "swin": (models.SwinTransformer, {"patch_size": [2, 2], "embed_dim": 16, "depths": [2, 3], "num_heads": [2, 4],
                                          "window_size": [4, 4], "num_classes": 10}),
    }  # fmt: skip
    return {name: lambda made=made: (made[0](**made[1]), image) for name, made in found.items()}


def mutant_models() -> dict[str, Build]:
    """Return every model as ``library/name``."""
    kinds = {"own": written_here, "timm": of_timm, "transformers": of_transformers, "torchvision": of_torchvision}
    return {f"{library}/{name}": build for library, builds in kinds.items() for name, build in builds().items()}
