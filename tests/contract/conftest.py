"""One table of host models, one of initializers, and which of them go together.

A test that asks for `pair` runs on a selection in which every initializer and every host stands at least once, and all
tests together, with the slow cases, see every pair that goes together. A test that asks for `refused_pair` runs on some
that do not, once for every reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import timm
import torch
from hosts import of_transformers
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from structured_init import (
    AdamSolver,
    Compose,
    Default,
    DeltaOrthogonal,
    FilterCovariance,
    Impulse,
    Induction,
    Initializer,
    KaimingUniform,
    MambaReference,
    Mimetic,
    MimeticStateSpace,
    Positions,
    PreviousToken,
    SamePositions,
    Scrambled,
    SparePositions,
    SpatialFilters,
    TruncatedNormal,
    UniformProjections,
    WeightSelection,
)

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
TEXT = {"vocab_size": 13, "max_position_embeddings": 12, **TOKENS}
VIT = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
WHISPER = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4}
WHISPER |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 13}
WHISPER |= {"num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 7, **TOKENS}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12, "vocab_size": 13, **TOKENS}
GROUPED = {**WIDTH, **TEXT, "num_key_value_heads": 2, "head_dim": 6}
STATES = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 13, **TOKENS}
STATES2 = {**STATES, "expand": 2, "num_heads": 4, "head_dim": 4, "n_groups": 2, "chunk_size": 4}
SWIN = {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2)}


def images(device: str, size: int = 8) -> dict[str, Tensor]:
    return {"x": torch.zeros(2, 3, size, size, device=device)}


def pixel_values(device: str) -> dict[str, Tensor]:
    return {"pixel_values": torch.zeros(2, 3, 8, 8, device=device)}


def ids(device: str) -> dict[str, Tensor]:
    return {"input_ids": torch.zeros(2, 6, dtype=torch.long, device=device)}


def features(device: str) -> dict[str, Tensor]:
    return {"src": torch.zeros(2, 6, 16, device=device)}


def two_sequences(device: str) -> dict[str, Tensor]:
    return {name: torch.zeros(2, 6, 16, device=device) for name in ("tgt", "memory")}


def sound_and_ids(device: str) -> dict[str, Tensor]:
    shape = {"input_features": torch.zeros(2, 4, 12, device=device)}
    return {**shape, "decoder_input_ids": torch.zeros(2, 6, dtype=torch.long, device=device)}


def first_argument(make: Callable, name: str) -> Callable[[str], dict[str, Tensor]]:
    return lambda device: {name: next(iter(make(device).values()))}


class Host(NamedTuple):
    """How a small model is built, what comes in, and the kinds of site that it has."""

    build: Callable[[], nn.Module]
    inputs: Callable[[str], dict[str, Tensor]]
    has: set[str]


class Method(NamedTuple):
    """How an initializer is built, the kinds of site it cannot do without, and whether it draws random numbers."""

    build: Callable[[], Initializer]
    needs: set[str]
    draws: bool = True


def torch_convolutions() -> nn.Module:
    depthwise = nn.Conv2d(8, 8, 3, groups=8)
    return nn.Sequential(nn.Conv2d(3, 8, 3), depthwise, nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 16, 5))


def torch_encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False)


def resnet() -> nn.Module:
    block = timm.models.resnet.BasicBlock
    return timm.models.resnet.ResNet(block, (1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=8, num_classes=3)


LAYERS = {"layers"}
SEEN = LAYERS | {"attention", "square", "positions", "grid"}  # "square": heads × head_dim = width
READ = LAYERS | {"attention", "square", "positions", "sequence"}  # "sequence": its tokens can tell who was before
HOSTS = {
    "ViT of timm": Host(lambda: VisionTransformer(**VIT), images, SEEN),
    "ViT without class token": Host(
        lambda: VisionTransformer(**VIT, class_token=False, global_pool="avg"), images, SEEN | {"no prefix"}
    ),
    "ViT with norms and registers": Host(
        lambda: VisionTransformer(**VIT, qk_norm=True, init_values=1e-5, reg_tokens=2), images, SEEN
    ),
    "Swin": Host(
        lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN, num_classes=3),
        lambda device: images(device, 16),
        LAYERS | {"attention", "square", "sequence"},
    ),
    "ConvMixer": Host(
        lambda: timm.models.convmixer.ConvMixer(8, 3, kernel_size=3, patch_size=2, num_classes=3),
        images,
        LAYERS | {"depthwise"},
    ),
    "ConvNeXt": Host(
        lambda: timm.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), num_classes=3),
        lambda device: images(device, 32),
        LAYERS | {"depthwise"},
    ),
    "MLP-Mixer": Host(
        lambda: timm.models.mlp_mixer.MlpMixer(img_size=8, patch_size=2, num_blocks=2, embed_dim=16, num_classes=3),
        images,
        LAYERS | {"mlp"},
    ),
    "ResNet": Host(resnet, lambda device: images(device, 32), LAYERS),
    "encoder of torch": Host(torch_encoder, features, LAYERS | {"attention", "square"}),
    "decoder of torch": Host(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 2),
        two_sequences,
        LAYERS | {"attention", "square"},
    ),
    "convolutions of torch": Host(torch_convolutions, first_argument(images, "input"), LAYERS | {"depthwise"}),
    "ViT of transformers": Host(
        lambda: of_transformers("ViTModel", **WIDTH, image_size=8, patch_size=2), pixel_values, SEEN
    ),
    "BERT": Host(lambda: of_transformers("BertModel", **WIDTH, **TEXT), ids, READ),
    "GPT-2": Host(lambda: of_transformers("GPT2Model", **GPT2), ids, READ | {"two causal layers"}),
    "Llama with tied embeddings": Host(
        lambda: of_transformers("LlamaForCausalLM", **GROUPED, tie_word_embeddings=True),
        ids,
        LAYERS | {"attention", "sequence", "two causal layers"},
    ),
    "Whisper": Host(lambda: of_transformers("WhisperModel", **WHISPER), sound_and_ids, READ),
    "Mamba": Host(
        lambda: of_transformers("MambaModel", **STATES, time_step_rank=2), ids, LAYERS | {"state space", "depthwise"}
    ),
    "Mamba-2": Host(lambda: of_transformers("Mamba2Model", **STATES2), ids, LAYERS | {"state space", "depthwise"}),
    "no layers": Host(lambda: nn.Sequential(nn.Embedding(13, 4), nn.LayerNorm(4)), first_argument(ids, "input"), set()),
}


def teacher() -> nn.Module:
    return VisionTransformer(**{**VIT, "embed_dim": 32, "num_heads": 4})


def mimetic_everywhere() -> Initializer:
    return Compose([KaimingUniform(), Mimetic(), Positions(trainable=False)])


ON_GRID = {"attention", "positions", "grid"}
METHODS = {
    "Default": Method(Default, set(), draws=False),
    "TruncatedNormal": Method(lambda: TruncatedNormal(convolutions=True), {"layers"}),
    "KaimingUniform": Method(KaimingUniform, {"layers"}),
    "UniformProjections": Method(UniformProjections, {"attention"}),
    "Positions": Method(Positions, {"positions", "grid"}, draws=False),
    "Positions, Gaussian": Method(lambda: Positions("gaussian"), {"positions"}),
    "Positions, codes, fixed": Method(lambda: Positions("codes", trainable=False), {"positions", "grid"}),
    "Mimetic": Method(lambda: Mimetic(positions="keep"), {"attention"}),
    "Mimetic, circulated": Method(lambda: Mimetic(positions="keep", orientation="circulated"), {"attention", "square"}),
    "Mimetic on Kaiming, fixed positions": Method(mimetic_everywhere, ON_GRID),
    "Impulse, SVD": Method(Impulse, ON_GRID),
    "Impulse, separable": Method(lambda: Impulse(solver="separable"), ON_GRID),
    "Impulse, Adam": Method(
        lambda: Impulse(solver=AdamSolver(iterations=3), positions="keep"), ON_GRID | {"no prefix"}
    ),
    "SparePositions": Method(SparePositions, {"attention", "positions"}, draws=False),
    "PreviousToken": Method(PreviousToken, {"sequence"}),
    "Induction": Method(Induction, {"two causal layers"}),
    "MimeticStateSpace": Method(MimeticStateSpace, {"state space"}, draws=False),
    "FilterCovariance": Method(FilterCovariance, {"depthwise"}),
    "SpatialFilters, fixed": Method(lambda: SpatialFilters("impulse", frozen=True), {"depthwise"}),
    "DeltaOrthogonal": Method(DeltaOrthogonal, {"layers"}),
    "Scrambled, attention": Method(lambda: Scrambled(Mimetic(positions="keep")), {"attention"}),
    "Scrambled, filters": Method(lambda: Scrambled(FilterCovariance()), {"depthwise"}),
    "SamePositions": Method(lambda: SamePositions(Impulse(solver="separable")), ON_GRID),
    "WeightSelection": Method(lambda: WeightSelection(teacher(), missing="keep"), set(), draws=False),
    "MambaReference": Method(MambaReference, {"state space"}),
}


class Pair:
    """An initializer and a host, built anew at every call."""

    def __init__(self, method: str, host: str) -> None:
        self.name = f"{method} | {host}"
        self.draws = METHODS[method].draws
        self.serves = METHODS[method].needs <= HOSTS[host].has
        self._method, self._host = METHODS[method].build, HOSTS[host].build

    def model(self, seed: int = 0) -> nn.Module:
        return seeded(self._host, seed)

    def initializer(self) -> Initializer:
        return seeded(self._method, 1)


def seeded(build: Callable[[], Any], seed: int) -> Any:
    """Call ``build`` under a seed; the global random state comes back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


PAIRS = [Pair(method, host) for method in METHODS for host in HOSTS]
GOOD = [pair for pair in PAIRS if pair.serves]


def share(promise: int, promises: int) -> list[Any]:
    """The pairs on which one of several promises is tried: every method and every host, and each pair somewhere.

    What no method and no host needs to be tried once more is slow.
    """
    own, chosen, seen = GOOD[promise::promises], [], set()
    for least in (2, 1):  # what a pair has that no other has, of its method and its host
        for pair in own + GOOD[promise:] + GOOD[:promise]:
            new = set(pair.name.split(" | ")) - seen
            if len(new) >= least:
                chosen.append(pair)
                seen |= new
    rest = [pytest.param(pair, id=pair.name, marks=pytest.mark.slow) for pair in own if pair not in chosen]
    return [pytest.param(pair, id=pair.name) for pair in chosen] + rest


def refused() -> list[Pair]:
    """Each need of each initializer once, on the host that lacks least besides."""
    chosen: dict[tuple[str, str], Pair] = {}
    for name, method in METHODS.items():
        for need in sorted(method.needs):
            lacking = [host for host in HOSTS if need not in HOSTS[host].has]
            nearest = min(lacking, key=lambda host: len(method.needs - HOSTS[host].has))
            chosen.setdefault((name.partition(",")[0], need), Pair(name, nearest))
    return list({pair.name: pair for pair in chosen.values()}.values())


@pytest.fixture(scope="session")
def hosts() -> dict[str, Host]:
    """All hosts by name."""
    return HOSTS


@pytest.fixture(scope="session")
def good_pairs() -> list[Pair]:
    """All that go together."""
    return GOOD


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "refused_pair" in metafunc.fixturenames:
        metafunc.parametrize("refused_pair", refused(), ids=lambda pair: pair.name)
    if "pair" in metafunc.fixturenames:
        promises = [name for name, test in vars(metafunc.module).items() if "pair" in wanted(test)]
        pairs = share(promises.index(metafunc.definition.originalname), len(promises))
        metafunc.parametrize("pair", pairs)


def wanted(test: object) -> tuple[str, ...]:
    """The names of a test's arguments."""
    return test.__code__.co_varnames[: test.__code__.co_argcount] if hasattr(test, "__code__") else ()
