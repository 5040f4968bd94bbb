"""Every compact transformer family gives the logits of the public code, and reads its files.

``public_logits.json`` holds numbers of a run of SHI-Labs/Compact-Transformers (at cd11f09) in float64: the names and
shapes of its parameters, which a formula fills here as it did there, and the logits. Texts have neither a mask nor
positions there, since its text networks run without them only.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lightning_modules.networks import compact_transformer, text_compact_transformer
from lightning_modules.networks.compact_transformer import load_weights

RECORDED = json.loads(Path(__file__).with_name("public_logits.json").read_text(encoding="utf-8"))
IMAGE_SIZE = 16


def public_state(network):
    """The state dict that the public network had: a wave of its own for each name."""
    state = {}
    for name, shape in RECORDED["networks"][network]["shapes"].items():
        place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        wave = torch.sin(0.7 * place + zlib.crc32(name.encode()) % 1000).reshape(shape)
        state[name] = 1.0 + 0.1 * wave if name.endswith(("norm.weight", "norm1.weight")) else 0.2 * wave
    return state


@pytest.mark.parametrize("name", RECORDED["networks"])
def test_logits_equal_those_of_the_public_code(name):
    ids = torch.tensor(RECORDED["token_ids"])
    if name.startswith("text_"):
        # 19 and lower are tokens; none pads
        network = text_compact_transformer(name, vocab_size=20, num_classes=3, seq_len=ids.shape[1], positions="none")
        inputs = ids
    else:
        network = compact_transformer(name, image_size=IMAGE_SIZE, num_classes=3)
        numbers = torch.arange(2 * 3 * IMAGE_SIZE**2, dtype=torch.float64)
        inputs = torch.sin(0.37 * numbers).reshape(2, 3, IMAGE_SIZE, IMAGE_SIZE)
    network = network.double().eval()
    assert load_weights(network, public_state(name)) == ()
    expected = torch.tensor(RECORDED["networks"][name]["logits"], dtype=torch.float64)
    torch.testing.assert_close(network(inputs), expected, rtol=1e-9, atol=1e-9)


def small_cct(**changes):
    return compact_transformer("cct_2_3x2_32", **{"image_size": IMAGE_SIZE, "num_classes": 3, **changes})


def test_a_file_of_a_parallel_training_by_the_public_code_is_read(tmp_path):
    state = public_state("cct_2_3x2_32")
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "weights.pth")
    network = small_cct(weights=tmp_path / "weights.pth")
    assert torch.equal(network.encoder.head.weight, state["classifier.fc.weight"].float())


@pytest.mark.parametrize(("name", "prefix"), [("vit_lite_2_4_32", 1), ("cct_2_3x2_32", 0)])
def test_learned_positions_are_interpolated_for_a_larger_image(name, prefix):
    state = {each: tensor.float() for each, tensor in public_state(name).items()}
    network = compact_transformer(name, image_size=24, num_classes=7)
    assert load_weights(network, state) == ("encoder.head.weight", "encoder.head.bias")
    old, new = state["classifier.positional_emb"][0], network.encoder.pos_embed[0]
    assert torch.equal(new[:prefix], old[:prefix])
    grid = old[prefix:].view(4, 4, -1).permute(2, 0, 1)[None]
    expected = F.interpolate(grid, size=(6, 6), mode="bilinear")[0].permute(1, 2, 0).reshape(36, -1)
    torch.testing.assert_close(new[prefix:], expected)
    assert network(torch.randn(1, 3, 24, 24)).shape == (1, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("classifier.norm.bias"), 'Missing key.* "encoder.norm.bias"'),
        (lambda s: s.update({"classifier.x": torch.ones(1)}), 'Unexpected key.* "encoder.x"'),
        (lambda s: s.update({"classifier.norm.bias": torch.ones(3)}), "size mismatch for encoder.norm.bias"),
    ],
)
def test_weights_of_another_network_are_refused(change, message):
    state = public_state("cct_2_3x2_32")
    change(state)
    with pytest.raises(RuntimeError, match=message):
        load_weights(small_cct(), state)
