"""State dicts of the public code, which are made here in its naming."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from lightning_modules import ImageClassifier
from lightning_modules.networks import compact_transformer, text_compact_transformer
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


def test_every_name_of_the_public_code_finds_its_place():
    state = public_state()
    network = compact_transformer("cct_2_3x2_32")
    assert load_weights(network, state) == ()
    encoder = network.encoder
    expected = {
        "tokenizer.conv_layers.1.0.weight": network.tokenizer.conv_layers[1][0].weight,
        "classifier.positional_emb": encoder.pos_embed,
        "classifier.blocks.1.pre_norm.weight": encoder.blocks[1].norm1.weight,
        "classifier.blocks.1.norm1.weight": encoder.blocks[1].norm2.weight,
        "classifier.blocks.0.norm1.bias": encoder.blocks[0].norm2.bias,
        "classifier.blocks.1.self_attn.qkv.weight": encoder.blocks[1].attn.qkv.weight,
        "classifier.blocks.1.linear2.bias": encoder.blocks[1].mlp.fc2.bias,
        "classifier.attention_pool.weight": encoder.pool.score.weight,
        "classifier.norm.bias": encoder.norm.bias,
        "classifier.fc.weight": encoder.head.weight,
    }
    for name, tensor in expected.items():
        assert torch.equal(tensor, state[name]), name


def test_a_class_token_finds_its_place():
    state = public_state(class_token=True)
    network = compact_transformer("vit_lite_2_4_32")
    load_weights(network, state)
    assert torch.equal(network.encoder.cls_token, state["classifier.class_emb"])
    assert torch.equal(network.tokenizer.conv_layers[0][0].bias, state["tokenizer.conv_layers.0.0.bias"])


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


def test_a_checkpoint_of_a_training_and_our_own_names_are_read(tmp_path):
    module = ImageClassifier("cct_2_3x2_32")
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": module.state_dict(), "pytorch-lightning_version": "2.6"}, path)
    loaded = compact_transformer("cct_2_3x2_32", weights=path)
    torch.testing.assert_close(loaded.state_dict(), module.network.state_dict())


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


def test_sines_are_made_anew_for_a_larger_image():
    network = compact_transformer("cct_2_3x2_32_sine", image_size=48)
    expected = network.encoder.pos_embed.clone()
    load_weights(network, public_state())
    assert torch.equal(network.encoder.pos_embed, expected)


def test_a_classically_trained_network_goes_on_with_an_alpha_of_its_own():
    arguments = {"mode": "remix", "alpha": 0.0, "learnable": True, "per_head": True}
    network = compact_transformer("cct_2_3x2_32", token_softmax=arguments)
    left = load_weights(network, public_state())
    assert left == tuple(f"encoder.blocks.{i}.attn.token_softmax.alpha" for i in range(2))
    plain = compact_transformer("cct_2_3x2_32")
    load_weights(plain, public_state())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(network.eval()(images), plain.eval()(images))


def test_text_networks_take_weights_too():
    source, target = (text_compact_transformer("text_cct_2_1x1", vocab_size=20, num_classes=2) for _ in range(2))
    public = {name.replace("encoder.", "classifier."): tensor for name, tensor in source.state_dict().items()}
    public["embedder.embeddings.weight"] = public.pop("embedding.weight") + 1
    public["classifier.positional_emb"] = public.pop("classifier.pos_embed")
    public["classifier.fc.weight"] = public.pop("classifier.head.weight")
    public["classifier.fc.bias"] = public.pop("classifier.head.bias")
    for name in [name for name in public if ".blocks." in name or ".pool." in name]:
        to = name.replace(".norm1.", ".pre_norm.").replace(".norm2.", ".norm1.").replace(".attn.", ".self_attn.")
        to = to.replace(".mlp.fc", ".linear").replace(".pool.score.", ".attention_pool.")
        public[to] = public.pop(name)
    load_weights(target, public)
    assert torch.equal(target.embedding.weight, source.embedding.weight + 1)
    assert torch.equal(target.encoder.blocks[1].norm2.weight, source.encoder.blocks[1].norm2.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("classifier.norm.bias"), "they have no 'encoder.norm.bias'"),
        (lambda s: s.update({"classifier.x": torch.ones(1)}), "they have 'encoder.x', which this one lacks"),
        (lambda s: s.update({"classifier.norm.bias": torch.ones(3)}), r"'encoder.norm.bias' has shape \(3,\) there"),
        (
            lambda s: s.update({"classifier.positional_emb": torch.ones(1, 50, 128)}),
            "50 positions are not a square grid",
        ),
    ],
)
def test_weights_of_another_network_are_refused_and_nothing_is_loaded(change, message):
    state = public_state()
    change(state)
    network = compact_transformer("cct_2_3x2_32")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(StructuredInitError, match=message):
        load_weights(network, state)
    torch.testing.assert_close(network.state_dict(), before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "weights: there is no file"),
        (b"no", "weights: cannot read .* or it is not a checkpoint"),
        ([1], "is no dictionary of tensors"),
    ],
)
def test_a_file_that_is_none_is_answered_in_one_line(content, message, tmp_path):
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(StructuredInitError, match=message):
        compact_transformer("cct_2_3x2_32", weights=path)


def test_code_in_a_file_is_never_run(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"x": torch.nn.Linear(1, 1)}, path)
    with pytest.raises(StructuredInitError, match="it holds Python objects, which are never run"):
        load_weights(compact_transformer("cct_2_3x2_32"), path)
