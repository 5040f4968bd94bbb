"""Position sites: the rows of the grid, and only those."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init import (
    Positions,
    StructuredInitError,
    TokenLayout,
    initialize,
    position_sites,
    register_positions,
)


def test_a_model_without_positions_has_no_site_and_says_so(tiny_vit):
    model = tiny_vit(pos_embed="none")
    assert position_sites(model) == []
    with pytest.raises(StructuredInitError, match="Positions found no positions: the model was built without any"):
        initialize(model, Positions())


def test_where_selects_among_towers_and_lists_them_when_it_selects_none(tiny_vit):
    model = nn.ModuleDict({"left": tiny_vit(), "right": tiny_vit()})
    assert [site.name for site in position_sites(model, "right.*")] == ["right.pos_embed"]
    with pytest.raises(StructuredInitError, match=r"selects none .* \(left.pos_embed, right.pos_embed\)"):
        initialize(model, Positions(where="middle.*"))


class Net(nn.Module):
    """A table of a user's, in a buffer."""

    def __init__(self, rows):
        super().__init__()
        self.register_buffer("table", torch.zeros(1, rows, 8))


def test_positions_in_a_users_buffer_work():
    register_positions(Net)(lambda module: TokenLayout(grid=(2, 3), positions=module.table))
    model = nn.Sequential(Net(6))
    report = initialize(model, Positions("gaussian", gain=50.0, trainable=True))  # a buffer cannot be thawed
    assert [entry.names for entry in report.changed] == [("0.table",)]
    assert model[0].table.std() > 0.5


def test_a_grid_that_does_not_match_the_positions_is_one_line():
    register_positions(Net)(lambda module: TokenLayout(grid=(2, 3), positions=module.table))
    with pytest.raises(StructuredInitError, match=r"7 grid positions, which a 2×3 grid does not match: .*first=1"):
        initialize(nn.Sequential(Net(7)), Positions())
