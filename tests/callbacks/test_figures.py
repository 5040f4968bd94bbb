import re

import numpy as np
import pytest
import torch

from callbacks.figures import (
    covariance_figure,
    depth_figure,
    filter_figure,
    half_life_figure,
    map_figure,
    product_figure,
    profile_figure,
    save_figure,
    token_figure,
    variance_figure,
    zoom_figure,
)
from structured_init import StructuredInitError
from structured_init.analysis import WeightProducts, summarize


def maps(heads: int = 2, tokens: int = 17, layers: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"blocks.{i}.attn": torch.rand(heads, tokens, tokens, generator=generator).softmax(-1) for i in range(layers)
    }


def images(figure) -> list:
    return [image for axis in figure.axes for image in axis.get_images() if axis.get_title()]


def test_before_and_after_stand_on_one_colour_scale():
    flat = {name: torch.full_like(layer, 1 / 17) for name, layer in maps().items()}
    before, after = images(map_figure({"before": flat, "after": maps()}))
    assert before.norm is after.norm
    assert before.norm.vmin == 0


def test_a_colour_bar_says_whether_values_lie_beyond_it():
    few = torch.full((3, 64, 64), 0.1)
    ends = []
    for extreme in (0.1, 0.9, -0.9):
        few[0, 0, 0] = extreme
        figure = map_figure({"x": {"a": few}})
        ends += [image.colorbar.extend for axis in figure.axes for image in axis.get_images() if image.colorbar]
    assert ends == ["neither", "max", "min"]


@pytest.mark.parametrize(("labels", "heads"), [(1, 1), (5, 12)])
def test_any_number_of_labels_is_drawn(labels, heads):
    maps = {f"arm {number}": {"0": torch.rand(heads, 4, 4)} for number in range(labels)}
    drawn = [axis.get_title() for axis in map_figure(maps).axes]
    assert [title for title in drawn if title.startswith("arm")] == list(maps)
    products = {label: {"0": WeightProducts(of["0"], of["0"][0])} for label, of in maps.items()}
    figure = product_figure(products, same_scale=False)
    assert len([axis for axis in figure.axes if axis.get_title()]) == 2 * labels


def test_weight_products_are_coloured_symmetrically_around_zero():
    products = {"a.0": WeightProducts(torch.randn(3, 8, 8), torch.randn(8, 8))}
    louder = {"a.0": WeightProducts(9 * torch.randn(3, 8, 8), 9 * torch.randn(8, 8))}
    same = images(product_figure({"one": products, "two": louder}))
    own = images(product_figure({"one": products, "two": louder}, same_scale=False))
    assert all(image.norm.vmin == -image.norm.vmax for image in same + own)
    assert same[0].norm is same[2].norm
    assert own[2].norm.vmax > 5 * own[0].norm.vmax


MAPS = {"a": {"0": torch.rand(2, 17, 17)}}


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: map_figure({}), "map_figure has nothing to draw: "),
        (lambda: half_life_figure({"a": {}}), "half_life_figure has nothing to draw: "),
        (lambda: map_figure({"a": {"0": torch.rand(2, 3, 4, 4)}}), "as maps.mean(0) is}}, got (2, 3, 4, 4)"),
        (lambda: map_figure({"0": torch.rand(3, 4, 4)}), "got {'0': Tensor}"),
        (lambda: product_figure({"a": torch.nn.Linear(2, 2)}), "got {'a': Linear}"),
        (lambda: product_figure({"mine": {}}), "product_figure has nothing to draw: "),
        (lambda: zoom_figure(MAPS, 5, 1), "17 tokens have no rows of 5 patches after 1 prefix tokens"),
        (
            lambda: depth_figure({"a": {"0": {"entropy": [1.0]}}}),
            "statistics, as summarize(maps) gives them}}, got {'e",
        ),
        (lambda: token_figure(MAPS, range(18)), "'0' has maps of 17 queries and 17 keys, which are not the 18 tokens"),
        (lambda: save_figure(map_figure(MAPS), "figure.svg"), "save_figure writes PNG: name the file 'figure.png'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(draw, said):
    with pytest.raises(StructuredInitError, match=re.escape(said)) as error:
        draw()
    assert "\n" not in str(error.value)


def test_labels_and_layers_may_be_numbers():
    layer, filters, statistics = torch.rand(1, 5, 5), torch.rand(4, 3, 3), summarize(torch.rand(1, 1, 5, 5).softmax(-1))
    for draw in (map_figure, profile_figure, lambda given: token_figure(given, range(5))):
        assert draw({0.1: {0: layer}, 2: {0: layer}}).axes[0].get_title().partition("\n")[0] == "0.1"
    for draw in (covariance_figure, variance_figure, filter_figure):
        assert "0.1" in (draw({0.1: {0: filters}}).axes[0].get_ylabel(), draw({0.1: {0: filters}}).axes[0].get_title())
    assert depth_figure({64: {0: statistics}}).legends[0].get_texts()[0].get_text() == "64"


def test_many_layers_and_heads_are_thinned_and_keep_their_numbers():
    figure = map_figure({"before": maps(heads=30, tokens=5, layers=45)}, max_heads=4)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [str(4 * number) for number in range(12)]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["head 0", "10", "19", "29"]


def test_layers_of_different_resolution_share_a_figure():
    mixed = {"a.0": torch.rand(1, 4, 4), "a.1": torch.rand(2, 8, 8)}
    (image,) = images(map_figure({"before": mixed}))
    np.testing.assert_allclose(
        image.get_array()[:8, :8], mixed["a.0"][0].repeat_interleave(2, 0).repeat_interleave(2, 1)
    )


def test_products_of_two_widths_keep_their_diagonals():
    cross = WeightProducts(torch.eye(8, 5).expand(2, -1, -1), torch.eye(5, 8))
    own = WeightProducts(torch.eye(8).expand(2, -1, -1), torch.eye(8))
    figure = product_figure({"m": {"cross": cross, "blocks.0.attn": own}})
    for image, product in zip(images(figure), cross, strict=True):
        panel = image.get_array()[:8, :8].filled(np.nan)
        rows, columns = product.shape[-2:]
        np.testing.assert_array_equal(panel[:rows, :columns], np.eye(rows, columns))
        assert np.isnan(panel[rows:]).all()
        assert np.isnan(panel[:, columns:]).all()


def test_figures_are_written_as_png_without_pyplot_state(tmp_path):
    from matplotlib import _pylab_helpers

    save_figure(token_figure({"before": maps()}, ["The", "Ġ$fox$", "\n", "\x00"]), tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not _pylab_helpers.Gcf.figs


@pytest.mark.parametrize(
    ("rows", "columns", "shape", "title"),
    [
        (1, 64, (5, 15), "up to ±7 tokens"),
        (4, 64, (7, 15), "up to ±7 patches"),
        (4, 4, (7, 7), "up to ±3 patches"),
    ],
)
def test_a_profile_reaches_as_far_as_it_can_on_each_axis_with_its_query_in_the_centre(rows, columns, shape, title):
    profile = torch.zeros(2, 2 * rows - 1, 2 * columns - 1)
    profile[1, rows - 1, columns - 2] = 1.0  # head 1 looks at what stands before
    figure = profile_figure({"before": {"a.0": profile, "a.1": profile}})
    (image,), (down, across) = images(figure), shape
    bright = [*map(tuple, np.argwhere(image.get_array().filled(0) == 1).tolist())]
    strip = range(down) if rows == 1 else [down // 2]
    query = across + 1 + across // 2
    assert bright == [(top + y, query - 1) for top in (0, down + 1) for y in strip]
    dots = np.concatenate([line.get_xydata() for line in figure.axes[0].lines])
    middle = {across // 2, query}, {down // 2, down + 1 + down // 2}
    assert tuple(map(set, dots.T.tolist())) == middle
    assert title in figure.get_suptitle()


def test_layers_that_some_labels_lack_stand_at_their_own_names():
    layer, lives = summarize(torch.rand(1, 2, 8, 8).softmax(-1)), torch.ones(3)
    given = {"a": ("l.0", "l.10"), "b": ("l.2", "l.10"), "c": ("l.10",)}
    for draw, each in ((depth_figure, layer), (half_life_figure, lives)):
        axis = draw({label: dict.fromkeys(names, each) for label, names in given.items()}).axes[0]
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "2", "10"]
        places = {line.get_label(): line.get_xdata() for line in axis.lines}
        places |= {bars.get_label(): bars.lines[0].get_xdata() for bars in axis.containers}
        assert [np.round(np.array(places[label], dtype=float)).tolist() for label in given] == [[0, 2], [1, 2], [2]]


@pytest.mark.parametrize(
    ("tokens", "read"),
    [
        (["Ġc", "\n\n", "$", "\x00", "g", "h"], ["␣c", "⏎⏎", r"\$", r"\x00"]),
        (torch.arange(52, 58), ["52", "53", "54", "55"]),
    ],
)
def test_a_text_shows_the_maps_of_its_first_tokens_with_these_along_the_axes(tokens, read):
    given = maps(heads=3, tokens=26)
    figure = token_figure({"before": given, "after": given}, [*tokens, *range(20)])
    panels = [axis for axis in figure.axes if axis.get_images() and len(axis.get_images()[0].get_array()) == 24]
    assert len(panels) == 3 * 2 * 2  # layers, moments, first and last head
    np.testing.assert_allclose(panels[0].get_images()[0].get_array(), given["blocks.0.attn"][0, :24, :24])
    assert panels[0].get_title() == "before\nhead 0"
    assert [label.get_text() for label in panels[0].get_yticklabels()][:4] == read
    assert [label.get_text() for label in panels[-1].get_xticklabels()][:4] == read
    assert figure.get_suptitle().splitlines()[1] == "the first 24 of 26 tokens, 2 of 3 heads, 3 of 3 layers"
