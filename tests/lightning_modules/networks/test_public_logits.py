"""Every compact transformer family gives the logits of the public code.

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

from lightning_modules.networks import compact_transformer, text_compact_transformer
from lightning_modules.networks.compact_transformer import load_weights

RECORDED = json.loads(Path(__file__).with_name("public_logits.json").read_text(encoding="utf-8"))
IMAGE_SIZE = 16


def filled(shapes):
    """The state dict that the public network had: a wave of its own for each name."""
    state = {}
    for name, shape in shapes.items():
        place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        wave = torch.sin(0.7 * place + zlib.crc32(name.encode()) % 1000).reshape(shape)
        state[name] = 1.0 + 0.1 * wave if name.endswith(("norm.weight", "norm1.weight")) else 0.2 * wave
    return state


@pytest.mark.parametrize("name", RECORDED["networks"])
def test_logits_equal_those_of_the_public_code(name):
    recorded = RECORDED["networks"][name]
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
    assert load_weights(network, filled(recorded["shapes"])) == ()
    expected = torch.tensor(recorded["logits"], dtype=torch.float64)
    torch.testing.assert_close(network(inputs), expected, rtol=1e-9, atol=1e-9)
