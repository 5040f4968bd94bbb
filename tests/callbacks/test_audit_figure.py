"""The picture of an audit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from torch import nn

from callbacks.figures import audit_figure, save_figure
from callbacks.figures.audit import KINDS
from structured_init.analysis import audit


@pytest.fixture
def model(tiny_vit):
    return tiny_vit(embed_dim=32, depth=3, num_heads=4)


def cells(figure) -> tuple[list[str], list[str], np.ndarray]:
    """Rows, columns and colours of the grid."""
    axis = figure.axes[0]
    rows, columns = ([label.get_text() for label in each] for each in (axis.get_yticklabels(), axis.get_xticklabels()))
    return rows, columns, axis.images[0].get_array()


def test_every_parameter_of_every_block_is_a_cell_in_the_colour_of_its_kind(model, tmp_path):
    nn.init.orthogonal_(model.blocks[1].mlp.fc1.weight)
    figure = audit_figure(audit(model, torch.randn(2, 3, 8, 8)))
    rows, columns, picture = cells(figure)
    assert columns == ["0", "1", "2"]
    assert rows[:3] == ["norm1", "norm1.bias", "attn.qkv"]
    assert picture.shape == (12, 3, 3)
    colours = [to_hex(picture[rows.index("mlp.fc1"), column]) for column in range(3)]
    assert colours == [KINDS["normal"], KINDS["structured"], KINDS["normal"]]
    assert to_hex(picture[rows.index("norm2"), 0]) == KINDS["zeros, ones, constants"]
    words = [label.get_text() for label in figure.axes[0].child_axes[0].get_yticklabels()]
    assert words[rows.index("attn.proj")] == "normal σ 0.02 (timm, transformers)"
    save_figure(figure, tmp_path / "audit.png", dpi=40)
    assert (tmp_path / "audit.png").stat().st_size > 1000


def test_scales_stand_beside_and_findings_below(model):
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight[0, 0] = torch.nan
    figure = audit_figure(audit(model))
    assert [axis.get_title() for axis in figure.axes[1:]] == ["root mean square of activations"]
    said = figure.legends[0].get_title().get_text()
    assert said.startswith("problem: blocks.0.mlp.fc1.weight: never initialized")


def test_a_model_without_blocks_or_batch_is_drawn_all_the_same():
    figure = audit_figure(audit(nn.LSTM(24, 24)))
    rows, columns, _ = cells(figure)
    assert (len(rows), columns) == (4, [""])
    assert [text.get_text() for text in figure.axes[1].texts] == ["no batch was run"]
    figure = audit_figure(audit(nn.LSTM(24, 24), torch.randn(5, 2, 24)))
    assert [text.get_text() for text in figure.axes[1].texts] == [
        "no equal blocks were seen\nto run one behind the other"
    ]
