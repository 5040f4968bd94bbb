"""The picture of an audit."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from torch import nn

from callbacks.figures import audit_figure, save_figure
from callbacks.figures.audit import KINDS
from structured_init.analysis import audit
from structured_init.analysis.audit import Finding


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
    words = [each.get_text() for each in figure.axes[0].texts]
    assert words[rows.index("attn.proj")] == "normal σ 0.02 (timm, transformers)"
    save_figure(figure, tmp_path / "audit.png", dpi=40)
    assert (tmp_path / "audit.png").stat().st_size > 1000


def test_scales_and_diagonals_stand_beside_and_findings_below(model):
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight[0, 0] = torch.nan
    figure = audit_figure(audit(model))
    titles = [axis.get_title() for axis in figure.axes[1:]]
    assert titles == ["root mean square after each block", "mean diagonal / spread off the diagonal"]
    said = [text.get_text() for text in figure.texts]
    assert any(text.startswith("problem: blocks.0.mlp.fc1.weight was never initialized") for text in said)


def test_no_line_leaves_the_paper():
    network = nn.Sequential(nn.Embedding(9, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 9))
    found = audit(network, torch.arange(9)[None])
    found.findings = [Finding("parts", (), "some numbers are zero, " * 9)]
    figure = audit_figure(found)
    assert found.loss
    assert figure.get_suptitle().replace("\n", " ") == found.headline()
    said = " ".join(text.get_text().strip() for text in figure.texts)
    assert str(found.findings[0]).strip() in said  # over several lines, its end too
    figure.canvas.draw()
    assert all(each.get_window_extent().x1 <= figure.bbox.width for each in (figure._suptitle, *figure.texts))


def test_a_model_without_blocks_or_batch_is_drawn_all_the_same():
    figure = audit_figure(audit(nn.LSTM(24, 24)))
    rows, columns, _ = cells(figure)
    assert (len(rows), columns) == (4, [""])
    assert [text.get_text() for text in figure.axes[1].texts] == ["no batch was run"]
    figure = audit_figure(audit(nn.LSTM(24, 24), torch.randn(5, 2, 24)))
    assert [text.get_text() for text in figure.axes[1].texts] == [
        "no equal blocks were seen\nto run one behind the other"
    ]


def test_blocks_of_two_lists_stand_in_the_order_in_which_the_curves_number_them():
    class Alternating(nn.Module):
        def __init__(self):
            super().__init__()
            mlp = lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU())  # noqa: E731
            self.first, self.second = (nn.ModuleList(mlp() for _ in range(2)) for _ in range(2))

        def forward(self, x):
            for first, second in zip(self.first, self.second, strict=True):
                x = x + second(x + first(x))
            return x

    found = audit(Alternating(), torch.randn(4, 8))
    assert [each.name for each in found.blocks] == ["first.0", "second.0", "first.1", "second.1"]
    figure = audit_figure(found)
    assert cells(figure)[1] == ["first.0", "second.0", "first.1", "second.1"]
    joined = [list(line.get_xdata()) for line in figure.axes[1].lines if line.get_linestyle() == "-"]
    assert joined == 2 * [[0, 2], [1, 3]]  # no line from one list to the other


def test_a_block_without_a_part_that_all_others_have_is_drawn_with_an_empty_cell():
    parts = [["ff", "out"], *[["ff", "out", "norm"]] * 3]
    blocks = [nn.Sequential(OrderedDict({part: nn.Linear(4, 4) for part in each})) for each in parts]
    rows, columns, picture = cells(audit_figure(audit(nn.ModuleList(blocks))))
    assert columns == ["0", "1", "2", "3"]
    assert [to_hex(each) == "#ffffff" for each in picture[rows.index("norm")]] == [True, False, False, False]


@pytest.mark.parametrize("name", ["down", "down_blocks", "WWMMWWMM_of_the_second_encoder"])
def test_names_of_blocks_stand_below_the_title(name):
    model = nn.ModuleDict({each: nn.ModuleList(nn.GRUCell(4, 4) for _ in range(3)) for each in (name, "up_blocks")})
    figure = audit_figure(audit(model))
    assert cells(figure)[1][0] == f"{name}.0"
    figure.draw_without_rendering()
    tallest = max(label.get_window_extent().y1 for label in figure.axes[0].get_xticklabels())
    assert tallest < figure._suptitle.get_window_extent().y0


def test_many_blocks_and_parameters_are_thinned_out(monkeypatch):
    monkeypatch.setattr("callbacks.figures.audit.MOST_ROWS", 4)
    monkeypatch.setattr("callbacks.figures.audit.MOST_COLUMNS", 3)
    blocks = [nn.Sequential(OrderedDict({f"l{j}": nn.Linear(4, 4) for j in range(3)})) for _ in range(5)]
    _, columns, picture = cells(audit_figure(audit(nn.ModuleList(blocks))))
    assert picture.shape == (4, 3, 3)
    assert columns == ["0", "2", "4"]
