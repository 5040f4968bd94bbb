"""Position sites: the rows of the grid, and only those."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from torch import nn

from structured_init import (
    Impulse,
    Mimetic,
    Positions,
    PreviousToken,
    StructuredInitError,
    TokenLayout,
    initialize,
    position_sites,
    register_positions,
)
from structured_init.overlay import Weights


def test_a_model_without_positions_has_no_site_and_says_so(tiny_vit):
    model = tiny_vit(pos_embed="none")
    assert position_sites(model) == []
    with pytest.raises(StructuredInitError, match="Positions found no positions: the model was built without any"):
        initialize(model, Positions())


def test_a_model_of_an_unknown_class_names_the_way_out():
    with pytest.raises(StructuredInitError, match=r"the model has Linear: .* structured_init.register_positions"):
        initialize(nn.Sequential(nn.Linear(2, 2)), Positions())


def test_where_selects_among_towers_and_lists_them_when_it_selects_none(tiny_vit):
    model = nn.ModuleDict({"left": tiny_vit(), "right": tiny_vit()})
    assert [site.name for site in position_sites(model, "right.*")] == ["right.pos_embed"]
    with pytest.raises(StructuredInitError, match=r"selects none .* \(left.pos_embed, right.pos_embed\)"):
        initialize(model, Positions(where="middle.*"))


def test_positions_in_a_users_buffer_work():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(1, 6, 8))

    register_positions(Net)(lambda module: TokenLayout(grid=(2, 3), positions=module.table))
    model = nn.Sequential(Net())
    report = initialize(model, Positions("gaussian", std=1.0, trainable=True))  # a buffer cannot be thawed
    assert [entry.names for entry in report.changed] == [("0.table",)]
    assert model[0].table.std() > 0.5


def test_a_grid_that_does_not_match_the_positions_is_one_line():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(1, 7, 8))

    register_positions(Net)(lambda module: TokenLayout(grid=(2, 3), positions=module.table))
    with pytest.raises(
        StructuredInitError,
        match=r"'0.table' holds 7 grid positions, which a 2×3 grid does not match: .* takes first=1",
    ):
        initialize(nn.Sequential(Net()), Positions())


def test_a_sequence_takes_gaussian_positions_and_refuses_sincos():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(7, 8))

    register_positions(Net)(lambda module: TokenLayout(grid=None, positions=module.table))
    model = nn.Sequential(Net())
    initialize(model, Positions("gaussian"))
    assert model[0].table.abs().min() > 0
    with pytest.raises(StructuredInitError, match=r"'0.table' holds positions of a sequence.*kind='gaussian'"):
        initialize(model, Positions())


def test_one_row_is_not_spread_over_the_grid(tiny_vit, as_installed):
    (site,) = position_sites(Weights(tiny_vit()))
    with pytest.raises(StructuredInitError, match=r"'pos_embed' takes .* = \(16, 16\), got \(1, 16\)"):
        site.write(torch.zeros(1, 16), "me")


def test_a_batch_that_is_only_offered_finds_as_many_positions_as_one_that_is_given():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
            config = transformers.BertConfig(**sizes, vocab_size=40, max_position_embeddings=8)
            self.text = transformers.BertModel(config, add_pooling_layer=False)
            self.when = nn.Parameter(0.02 * torch.randn(1, 4, 32))
            layer = nn.TransformerEncoderLayer(32, 2, 32, batch_first=True)
            self.session = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids):
            items = self.text(ids.flatten(0, 1)).last_hidden_state.mean(dim=1).unflatten(0, ids.shape[:2])
            return self.session(items + self.when)

    model, batch = Towers(), torch.randint(1, 40, (2, 4, 8))
    given, offered = ([each.name for each in position_sites(model, batch=b)] for b in (batch, lambda: batch))
    assert given == offered == ["text.embeddings.position_embeddings.weight", "when"]


class Added(nn.Module):
    """A series to which rows of a table are added, those of the given numbers."""

    def __init__(self):
        super().__init__()
        self.wpe = nn.Embedding(12, 32)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(32, 2, 32, batch_first=True)])

    def forward(self, x, rows):
        return self.layers[0](x + self.wpe(rows))


def test_that_a_model_fails_on_a_batch_that_is_offered_is_said_where_positions_are_missing():
    model, offered = Added(), lambda: {"x": torch.randn(2, 12, 32), "y": 1}
    model.when = model._modules.pop("wpe")  # a name that tells nothing
    said = (
        "Added fails on the batch: .* unexpected keyword .*probe_inputs.*; so no learned table of positions was found"
    )
    for initializer in (Positions("gaussian"), PreviousToken(), Impulse()):
        with pytest.raises(StructuredInitError, match=said):
            initialize(model, initializer, batch=offered)
    assert re.match(said, initialize(model, Mimetic(), batch=offered).skipped["positions"])
