import random

import numpy as np
import pytest
import timm
import torch
import transformers
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from structured_init.analysis import gram_matrices
from structured_init.errors import StructuredInitError


@pytest.fixture
def images():
    return torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return VisionTransformer(
        img_size=16, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=5, drop_rate=0.1
    )


def hooks(model: nn.Module) -> list[int]:
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def centred_gram(features: torch.Tensor) -> torch.Tensor:
    """The Gram matrix of features less their mean, by the centring matrix on both sides."""
    m = len(features)
    flat = features.reshape(m, -1).double()
    h = torch.eye(m, dtype=torch.float64) - 1 / m
    return h @ (flat @ flat.T) @ h


def test_gram_matrices_are_those_of_the_blocks_outputs_minibatch_by_minibatch(vit, images):
    found = gram_matrices(vit, images, batch_size=5)
    assert list(found) == ["blocks.0", "blocks.1", "blocks.2"]
    assert {(tuple(gram.shape), gram.dtype) for gram in found.values()} == {((2, 5, 5), torch.float64)}
    with torch.no_grad():
        tokens = vit.eval().forward_intermediates(
            images, norm=False, intermediates_only=True, return_prefix_tokens=True
        )
    for index, (patches, prefix) in enumerate(tokens):
        features = torch.cat([prefix, patches.flatten(2).mT], dim=1)
        for batch in range(2):
            expected = centred_gram(features[5 * batch : 5 * batch + 5])
            torch.testing.assert_close(found[f"blocks.{index}"][batch], expected, atol=1e-4, rtol=1e-4)


def test_model_and_random_states_are_left_as_they_were(vit, images, as_installed):  # the checker draws from `random`
    vit.train().blocks[0].eval()
    flags, before = [module.training for module in vit.modules()], hooks(vit)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    found = gram_matrices(vit, images)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])
    assert [module.training for module in vit.modules()] == flags
    assert hooks(vit) == before
    assert all(parameter.grad is None for parameter in vit.parameters())
    assert not any(gram.requires_grad for gram in found.values())


def test_features_are_dropped_minibatch_by_minibatch(images):
    """However many minibatches: no block's output outlives the next one."""
    import weakref

    alive: list = []
    most = 0

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            nonlocal most
            y = self.conv(x)
            most = max(most, sum(ref() is not None for ref in alive))
            alive.append(weakref.ref(y))
            return y

    gram_matrices(nn.Sequential(Watched(), Watched()), images.repeat(4, 1, 1, 1), batch_size=4)
    assert len(alive) == 2 * 12
    assert most <= 2


def hugging_face(name: str) -> tuple[nn.Module, dict]:
    sizes = {"hidden_size": 16, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "intermediate_size": 32}
    ids = {"input_ids": torch.arange(60).view(6, 10) % 20}
    if name == "vit":
        config = transformers.ViTConfig(**sizes, **heads, image_size=16, patch_size=8)
        return transformers.ViTModel(config), {"pixel_values": torch.randn(6, 3, 16, 16)}
    if name == "bert":
        config = transformers.BertConfig(**sizes, **heads, vocab_size=20)
        return transformers.BertModel(config), ids | {"attention_mask": torch.ones(6, 10, dtype=torch.long)}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=20, n_positions=16)
        return transformers.GPT2LMHeadModel(config), ids
    config = transformers.MambaConfig(**sizes, vocab_size=20, state_size=4)
    return transformers.MambaForCausalLM(config), ids


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "mamba"])
def test_transformers_models_are_looked_at(name):
    torch.manual_seed(0)
    model, inputs = hugging_face(name)
    found = gram_matrices(model, **inputs, batch_size=6)
    assert len(found) == 3
    with torch.no_grad():
        states = model.eval()(**inputs, output_hidden_states=True).hidden_states
    # The last state is normalised in some of these models; Mamba leaves out what its first block takes.
    outputs = states[:2] if name == "mamba" else states[1:3]
    for gram, state in zip(list(found.values())[:2], outputs, strict=True):
        torch.testing.assert_close(gram[0], centred_gram(state), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["convmixer", "convnext", "swin", "resnet"])
def test_networks_of_stages_are_looked_at_block_by_block(name, images):
    torch.manual_seed(0)
    model, expected = {
        "convmixer": lambda: (timm.models.convmixer.ConvMixer(16, 3, kernel_size=3, patch_size=4), 3),
        "convnext": lambda: (timm.models.convnext.ConvNeXt(depths=(1, 1, 2, 1), dims=(4, 8, 16, 32), patch_size=1), 5),
        "swin": lambda: (
            timm.models.swin_transformer.SwinTransformer(
                img_size=16, patch_size=2, window_size=4, embed_dim=8, depths=(2, 2), num_heads=(1, 2)
            ),
            4,
        ),
        "resnet": lambda: (timm.create_model("resnet18"), 8),
    }[name]()
    found = gram_matrices(model, images)
    assert len(found) == expected
    assert all(gram.shape == (1, 12, 12) and gram.isfinite().all() for gram in found.values())


def test_sequence_first_layers_are_turned_around():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=first) for first in (True, False)]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(6, 4, 8)

    class Turned(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layers = nn.ModuleList([layer, layer.__class__(8, 2, 16)])

        def forward(self, x):
            return self.layers[0](x)

    class SequenceFirst(Turned):
        def forward(self, x):
            return self.layers[0](x.transpose(0, 1)).transpose(0, 1)

    first, second = gram_matrices(Turned(layers[0]), x), gram_matrices(SequenceFirst(layers[1]), x)
    assert list(first) == ["layers.0"]  # the other one was not run
    torch.testing.assert_close(first["layers.0"], second["layers.0"], atol=1e-5, rtol=1e-5)


def test_first_tensor_of_several_outputs_counts():
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x = x["state"] if isinstance(x, dict) else x
            return {"indices": x.argmax(-1), "state": self.linear(x), "more": torch.zeros(3)}

    found = gram_matrices(nn.Sequential(Pairs(), Pairs()), torch.randn(5, 4))
    assert [gram.shape for gram in found.values()] == [(1, 5, 5)] * 2


def test_block_that_is_run_twice_has_a_name_per_call():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))

        def forward(self, x):
            for layer in (*self.layers, self.layers[0]):
                x = layer(x)
            return x

    found = gram_matrices(Shared(), torch.randn(10, 4), batch_size=5)
    assert {name: tuple(gram.shape) for name, gram in found.items()} == {
        "layers.0": (2, 5, 5),
        "layers.1": (2, 5, 5),
        "layers.0:2": (2, 5, 5),
    }


def test_nothing_to_look_at_is_one_line(vit, images):
    with pytest.raises(StructuredInitError, match="at least 4 samples, got 3"):
        gram_matrices(vit, images[:3])
    with pytest.raises(StructuredInitError, match="none of the blocks aside was run by VisionTransformer"):
        gram_matrices(vit, images, blocks={"aside": nn.Linear(1, 1)})

    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return self.linear(x).flatten(0, 2)

    model = nn.Sequential(Folded(), Folded())
    with pytest.raises(StructuredInitError, match=r"output of '0' has shape \(576, 16\).* 12 samples: choose other"):
        gram_matrices(model, images)
    assert not any(hooks(model))
