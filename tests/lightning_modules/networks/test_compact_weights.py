"""State dicts of the public code, which are made here in its naming."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from lightning_modules.networks import compact_transformer
from lightning_modules.networks.compact_transformer import load_weights
from structured_init import StructuredInitError


def public_state(depth=2, dim=128, mlp=1, tokens=64, classes=10, conv_layers=2, class_token=False, seed=0):
    """A state dict as ``src/cct.py`` and ``src/vit.py`` of the public code would write it, with random numbers."""
    shapes = {"classifier.positional_emb": (1, tokens + class_token, dim)}
    if class_token:
        shapes["classifier.class_emb"] = (1, 1, dim)
        shapes |= {"tokenizer.conv_layers.0.0.weight": (dim, 3, 4, 4), "tokenizer.conv_layers.0.0.bias": (dim,)}
    else:
        channels = [3, *[64] * (conv_layers - 1), dim]
        for i in range(conv_layers):
            shapes[f"tokenizer.conv_layers.{i}.0.weight"] = (channels[i + 1], channels[i], 3, 3)
        shapes |= {"classifier.attention_pool.weight": (1, dim), "classifier.attention_pool.bias": (1,)}
    for i in range(depth):
        block = f"classifier.blocks.{i}"
        for norm in ("pre_norm", "norm1"):
            shapes |= {f"{block}.{norm}.weight": (dim,), f"{block}.{norm}.bias": (dim,)}
        shapes |= {
            f"{block}.self_attn.qkv.weight": (3 * dim, dim),
            f"{block}.self_attn.proj.weight": (dim, dim),
            f"{block}.self_attn.proj.bias": (dim,),
            f"{block}.linear1.weight": (mlp * dim, dim),
            f"{block}.linear1.bias": (mlp * dim,),
            f"{block}.linear2.weight": (dim, mlp * dim),
            f"{block}.linear2.bias": (dim,),
        }
    shapes |= {"classifier.norm.weight": (dim,), "classifier.norm.bias": (dim,)}
    shapes |= {"classifier.fc.weight": (classes, dim), "classifier.fc.bias": (classes,)}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("form", ["bare", "timm", "parallel", "safetensors"])
def test_files_of_every_form_are_read(form, tmp_path):
    state = public_state()
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pth")
    if form == "safetensors":
        save_file(state, path)
    else:
        prefixed = {f"module.{name}" if form == "parallel" else name: tensor for name, tensor in state.items()}
        torch.save({"state_dict": prefixed, "epoch": 3} if form == "timm" else prefixed, path)
    network = compact_transformer("cct_2_3x2_32", weights=path)
    assert torch.equal(network.encoder.head.weight, state["classifier.fc.weight"])


@pytest.mark.parametrize("class_token", [False, True])
def test_learned_positions_are_interpolated_for_a_larger_image(class_token):
    state = public_state(class_token=class_token)
    name = "vit_lite_2_4_32" if class_token else "cct_2_3x2_32"
    network = compact_transformer(name, image_size=48, num_classes=7)
    assert load_weights(network, state) == ("encoder.head.weight", "encoder.head.bias")
    old, new = state["classifier.positional_emb"][0], network.encoder.pos_embed[0]
    prefix = int(class_token)
    assert torch.equal(new[:prefix], old[:prefix])
    grid = old[prefix:].view(8, 8, -1).permute(2, 0, 1)[None]
    expected = F.interpolate(grid, size=(12, 12), mode="bilinear")[0].permute(1, 2, 0).reshape(144, -1)
    torch.testing.assert_close(new[prefix:], expected)
    assert network(torch.randn(1, 3, 48, 48)).shape == (1, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("classifier.norm.bias"), 'Missing key.* "encoder.norm.bias"'),
        (lambda s: s.update({"classifier.x": torch.ones(1)}), 'Unexpected key.* "encoder.x"'),
        (lambda s: s.update({"classifier.norm.bias": torch.ones(3)}), "size mismatch for encoder.norm.bias"),
    ],
)
def test_weights_of_another_network_are_refused(change, message):
    state = public_state()
    change(state)
    with pytest.raises(RuntimeError, match=message):
        load_weights(compact_transformer("cct_2_3x2_32"), state)


def test_code_in_a_file_is_never_run(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"x": torch.nn.Linear(1, 1)}, path)
    with pytest.raises(StructuredInitError, match="it holds Python objects, which are never run"):
        load_weights(compact_transformer("cct_2_3x2_32"), path)
