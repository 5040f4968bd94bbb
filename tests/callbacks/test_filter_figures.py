"""The pictures of filters: what is in the panels, and that every shape is drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from callbacks.figures import covariance_figure, filter_figure, half_life_figure, save_figure, variance_figure
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
    assert abs(picture).max() == pytest.approx(1)  # nothing lies beyond the colours


def test_equal_filters_have_no_covariance_and_no_scale():
    figure = covariance_figure({"before": {"a": torch.ones(4, 3, 3)}})
    assert figure.axes[0].get_xlabel() == "trace 0, ± 0"


def test_moments_are_rows_and_layers_columns():
    moments = {label: {f"blocks.{i}": filters(12, 5, 5, seed=i) for i in range(3)} for label in ("before", "after")}
    figure = covariance_figure(moments)
    panels = [axis for axis in figure.axes if axis.images]
    assert len(panels) == 6
    assert [axis.get_ylabel() for axis in panels] == ["before", "", "", "after", "", ""]
    assert [axis.get_title() for axis in panels] == ["layer 0", "1", "2", "", "", ""]
    assert figure.axes[-1].get_ylabel() == "covariance, own scale (±)"
    heights = [axis.get_position().y0 for axis in panels]
    assert heights[0] > heights[3]


def test_layers_are_named_and_named_again_where_a_row_has_others():
    first, second = ({name: filters(12, 3, 3) for name in names} for names in (("mid.0", "down.1"), ("a.x", "a.y")))
    rows = [axis.get_title() for axis in covariance_figure({"one": first, "two": second}).axes if axis.images]
    assert rows == ["layer mid.0", "down.1", "layer x", "y"]
    larger = {name: 2 * each for name, each in first.items()}
    sides = [axis.get_yticklabels() for axis in filter_figure({"one": first, "two": larger}).axes[:2]]
    texts = [text.get_text().split("\n± ") for side in sides for text in side]
    assert [name for name, _ in texts] == 2 * ["mid.0", "down.1"]
    ends = [each.abs().flatten().sort().values[-2].item() for each in (*first.values(), *larger.values())]
    assert [float(end) for _, end in texts] == pytest.approx(ends, rel=0.05)


def test_layers_that_are_left_out_change_no_name():
    layers = {
        f"{name}.{one}.spatial": filters(12, 3, 3) for name in ("down.0", "down.1", "up.0") for one in ("c1", "c2")
    }
    figures = [draw({"before": layers}, max_layers=5) for draw in (covariance_figure, filter_figure)]
    rows = [axis.get_title() for axis in figures[0].axes if axis.images]
    names = [label.get_text().split("\n")[0] for label in figures[1].axes[0].get_yticklabels()]
    assert names == ["down.0.c1", "down.0.c2", "down.1.c1", "up.0.c1", "up.0.c2"]
    assert rows == [f"layer {names[0]}", *names[1:]]


def test_long_names_of_layers_stand_apart():
    layers = {f"{word}_of_the_second_network.{i}": filters(4, 3, 3) for word in ("encoder", "decoder") for i in (0, 1)}
    figure = variance_figure({"before": layers})
    figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in figure.axes if axis.images]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


@pytest.mark.parametrize("draw", [covariance_figure, variance_figure])
def test_long_labels_of_rows_stand_apart_and_within_the_figure(draw):
    labels = [f"{arm} {when}" for arm in ("default", "covariance_trace") for when in ("before", "after 30")]
    figure = draw({label: {"0": filters(9, 7, 7)} for label in [*labels, "a_name_without_any_space_in_it"]})
    figure.draw_without_rendering()
    boxes = [axis.yaxis.label.get_window_extent() for axis in figure.axes if axis.images]
    assert all(one.y0 > other.y1 for one, other in itertools.pairwise(boxes))
    assert min(box.x0 for box in boxes) > 0 < min(box.y0 for box in boxes)
    assert max(box.y1 for box in boxes) < figure.bbox.height


def test_the_variance_panel_is_the_variance_map():
    layer = filters(50, 3, 3)
    (picture,) = pictures(variance_figure({"start": {"a": layer}}))
    np.testing.assert_allclose(picture, layer.double().var(0) / layer.double().var(0).max())


def test_the_same_filters_are_drawn_at_every_moment():
    layer = filters(30, 3, 3)
    figure = filter_figure({"before": {"a": layer, "b": layer}, "after": {"a": layer, "b": layer}}, max_filters=4)
    first, second = pictures(figure)
    np.testing.assert_array_equal(first, second)
    expected = layer[[0, 10, 19, 29]] / layer.abs().flatten().kthvalue(round(0.995 * layer.numel())).values
    np.testing.assert_allclose(first[:3, :3], expected[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("narrow", "numbers"), [(16, [0, 5, 10, 15]), (3, [0, 1, 2, 3])], ids=["enough", "fewer than are drawn"]
)
def test_every_filter_is_the_one_whose_number_stands_above_it(narrow, numbers):
    each = torch.arange(32.0)[:, None, None].expand(-1, 2, 2) + 1
    figure = filter_figure({"x": {"narrow": each[:narrow], "wide": each}}, max_filters=4)
    assert [label.get_text().split()[-1] for label in figure.axes[0].get_xticklabels()] == [*map(str, numbers)]
    for row, count in ((0, narrow), (3, 32)):
        drawn = pictures(figure)[0][row, ::3]
        expected = [(number + 1) / count if number < count else np.nan for number in numbers]
        np.testing.assert_allclose(np.ma.filled(drawn, np.nan), expected, rtol=1e-6)


def test_half_lives_of_many_labels_are_told_apart_and_stay_with_their_layer():
    lives = {f"arm {number}": {"0": torch.tensor([1.0, 2.0]), "1": torch.tensor([1.0, 2.0])} for number in range(12)}
    lines = half_life_figure(lives).axes[0].get_lines()
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 12
    assert all(abs(x - layer) < 0.5 for line in lines for layer, x in enumerate(line.get_xdata()))


def test_half_lives_are_drawn_in_tokens_from_the_least_to_the_largest():
    (axis,) = half_life_figure({label: {"0": torch.tensor([[2.0, 8.0, 300.0]])} for label in ("before", "after")}).axes
    assert "tokens" in axis.get_ylabel()
    assert [line.get_ydata().tolist() for line in axis.lines] == [[8], [8]]
    assert [lines.get_segments()[0][:, 1].tolist() for lines in axis.collections] == [[2, 300], [2, 300]]


@pytest.mark.parametrize("draw", [covariance_figure, variance_figure, filter_figure])
@pytest.mark.parametrize(
    "layers",
    [
        {"a": filters(4, 9, 9)},
        {"a": filters(4, 1, 5)},
        {"a": filters(4, 3, 3), "b": filters(6, 4, 2)},
        {"a": torch.zeros(4, 3, 3)},
        {f"blocks.{i}": filters(2, 3, 3) for i in range(40)},
    ],
)
def test_every_shape_is_drawn(draw, layers, tmp_path):
    save_figure(draw({"before": layers, "after": layers}), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_formula_in_a_label_is_not_broken_and_the_title_of_1d_filters_speaks_of_rows():
    figure = variance_figure({"$Training$": {"a": filters(4, 3, 3)}})
    assert figure.axes[0].get_ylabel() == "$Training$"
    assert "each row shows" in covariance_figure({"x": {"a": filters(4, 1, 5)}}).get_suptitle()
    assert "each block shows" in covariance_figure({"x": {"a": filters(4, 3, 5)}}).get_suptitle()
