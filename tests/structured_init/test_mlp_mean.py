"""MlpMean: W_1 + μ·1 in the first layer of every MLP, whatever host it lies in."""

from __future__ import annotations

import pytest
import torch
import transformers
from timm.layers.mlp import Mlp
from torch import nn

from structured_init import FirstLayer, MlpLayout, MlpMean, StructuredInitError, initialize, register_mlp

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 11}


class Own(nn.Module):
    """Somebody's own MLP."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)


HOSTS = {
    "mlp.fc1.weight": lambda: nn.ModuleDict({"mlp": Mlp(6, 10)}),
    "layers.0.mlp.gate_proj.weight": lambda: transformers.LlamaModel(transformers.LlamaConfig(**SIZES)),
    "0.linear1.weight": lambda: nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 24)]),
    "block.mlp.wide.weight": lambda: nn.ModuleDict({"block": nn.ModuleDict({"mlp": Own()})}),
}


@pytest.mark.parametrize("name", HOSTS)
def test_every_entry_of_the_first_layer_moves_by_the_mean_and_nothing_else(name):
    model = HOSTS[name]().double()
    if "wide" in name:
        with pytest.raises(StructuredInitError, match=r"model has Own: give `batch=…`.* structured_init.register_mlp$"):
            initialize(model, MlpMean(0.5))
        register_mlp(Own)(lambda module: MlpLayout(FirstLayer(module.wide.weight)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    initialize(model, MlpMean(0.5))
    for each, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[each] + 0.5 * (each == name))
