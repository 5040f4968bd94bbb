"""Attention of causal, masked and classification models is captured while they train."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from callbacks import AttentionMapCallback


def captured(model, trainer, data, folder):
    """Train for an epoch; give the maps before it, and the token numbers they were taken on."""
    callback = AttentionMapCallback(samples=3, figures=False)
    run = trainer(default_root_dir=folder, callbacks=[callback])
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    run.fit(model, datamodule=data)
    return load_file(folder / "attention" / "before.safetensors"), callback.records["before"]["indices"], weights


@pytest.mark.parametrize(("network", "packed"), [("gpt2", True), ("llama", False), ("bert", True)])
def test_maps_are_those_of_eager_attention(network, packed, language_model, trainer, text, tokens, tmp_path):
    batch = tokens(9)
    if packed:
        batch["segment_ids"] = torch.tensor([1] * 5 + [2] * 4 + [0] * 3).expand(9, 12).contiguous()
    model, data = language_model(network), text(batch)
    data.objective = model.objective
    maps, indices, weights = captured(model, trainer, data, tmp_path)
    eager = language_model(network, network_args={"attn_implementation": "eager"}).eval()
    eager.load_state_dict(weights)
    inputs = {name: values[indices] for name, values in eager.probe_inputs(batch).items()}
    with torch.no_grad():
        arguments = eager._packed(inputs["segment_ids"]) if packed else {}
        expected = eager.network(inputs["input_ids"], output_attentions=True, **arguments).attentions
    assert len(maps) == len(expected) == 2
    for found, wanted in zip(maps.values(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        assert (found.triu(1) == 0).all() == (model.objective == "causal")
        if packed:
            assert found[:, :, 5:9, :5].abs().max() == 0  # the second document does not see the first
