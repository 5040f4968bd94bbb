"""The pictures of filters: what is in the panels, and that every shape is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callbacks.figures import covariance_figure, filter_figure, save_figure, variance_figure
from structured_init.analysis.filters import block_grid, empirical_covariance


def filters(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pictures(figure):
    """Arrays drawn, without the colour bar."""
    return [np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images]


def test_a_covariance_panel_shows_the_block_grid_up_to_its_scale():
    layer = filters(20, 3, 3)
    (picture,) = pictures(covariance_figure({"before": {"a": layer}}))
    expected = block_grid(empirical_covariance(layer), (3, 3)).numpy()
    ratio = picture / expected
    np.testing.assert_allclose(ratio, ratio[0, 0])


@pytest.mark.parametrize("size", [(1, 15), (15, 1)])
def test_the_covariance_of_filters_along_a_line_is_a_square_matrix(size):
    layer = filters(40, *size)
    figure = covariance_figure({"before": {"a": layer}})
    (picture,) = pictures(figure)
    expected = np.cov(layer.flatten(1).double().numpy(), rowvar=False, bias=True)
    np.testing.assert_allclose(picture / picture[0, 0], expected / expected[0, 0])
    assert figure.axes[0].get_xlim() == (-0.5, 14.5)  # lines between the weights are within


def test_moments_are_rows_and_layers_columns():
    moments = {label: {f"blocks.{i}": filters(12, 5, 5, seed=i) for i in range(3)} for label in ("before", "after")}
    figure = covariance_figure(moments)
    panels = [axis for axis in figure.axes if axis.images]
    assert len(panels) == 6
    assert [axis.get_ylabel() for axis in panels] == ["before", "", "", "after", "", ""]
    assert [axis.get_title() for axis in panels] == ["layer 0", "1", "2"] * 2
    assert figure.axes[-1].get_ylabel() == "covariance, own scale (±)"
    heights = [axis.get_position().y0 for axis in panels]
    assert heights[0] > heights[3]


def test_the_variance_panel_is_the_variance_map():
    layer = filters(50, 3, 3)
    (picture,) = pictures(variance_figure({"start": {"a": layer}}))
    np.testing.assert_allclose(picture, layer.double().var(0) / layer.double().var(0).max())


@pytest.mark.parametrize(
    ("narrow", "numbers"), [(28, range(0, 28, 3)), (3, range(10))], ids=["enough", "fewer than are drawn"]
)
def test_every_filter_is_the_one_whose_number_stands_above_it(narrow, numbers):
    each = -torch.arange(32.0)[:, None, None].expand(-1, 2, 2) - 1
    layers = {"narrow": each[:narrow], "wide": each}
    figure = filter_figure({"before": layers, "after": layers})
    np.testing.assert_array_equal(*pictures(figure))
    assert [label.get_text().split()[-1] for label in figure.axes[0].get_xticklabels()] == [*map(str, numbers)]
    for row, count in ((0, narrow), (3, 32)):
        drawn = pictures(figure)[0][row, ::3]
        expected = [-(number + 1) / count if number < count else np.nan for number in numbers]
        np.testing.assert_allclose(np.ma.filled(drawn, np.nan), expected, rtol=1e-6)


@pytest.mark.parametrize("draw", [covariance_figure, variance_figure, filter_figure])
@pytest.mark.parametrize(
    "layers",
    [
        {"a": filters(4, 9, 9), "b": filters(6, 4, 2), "c": filters(4, 1, 5), "d": torch.zeros(4, 3, 3)},
        {f"blocks.{i}": filters(2, 3, 3) for i in range(40)},
    ],
)
def test_every_shape_is_drawn(draw, layers, tmp_path):
    save_figure(draw({"before": layers, "after": layers}), tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 1000
