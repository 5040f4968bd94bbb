import itertools
import re

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from callbacks.figures import (
    audit_figure,
    circuit_figure,
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
from callbacks.figures.attention import readable
from callbacks.figures.mosaic import Mosaic, evenly
from structured_init import StructuredInitError
from structured_init.analysis import WeightProducts, audit, summarize


def maps(heads: int = 2, tokens: int = 17, layers: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"blocks.{i}.attn": torch.rand(heads, tokens, tokens, generator=generator).softmax(-1) for i in range(layers)
    }


def images(figure) -> list:
    return [image for axis in figure.axes for image in axis.get_images() if axis.get_title()]


def test_mosaic_shows_every_panel_unchanged_in_its_place():
    panels = {"a": torch.rand(2, 4, 4), "b": torch.rand(1, 4, 4)}
    mosaic = Mosaic("label", panels, ["0", "1"])
    image = mosaic.image()
    np.testing.assert_allclose(image[:4, 5:9], panels["a"][1])
    np.testing.assert_allclose(image[5:9, :4], panels["b"][0])
    assert np.isnan(image[5:9, 5:9]).all()
    assert np.isnan(image[4]).all()


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
    thin = torch.full((600, 1, 4), 0.1)  # drawn on squares, whose rest is no number
    thin[0, 0, 0] = -0.9
    figure = filter_figure({"x": {"a": thin}})
    assert [image.colorbar.extend for axis in figure.axes for image in axis.get_images() if image.colorbar] == ["min"]
    opposed = torch.randn(50, 5, 5)
    opposed[:, 0, 0], opposed[:, 0, 1] = 5 * opposed[:, 0, 0], -5 * opposed[:, 0, 0]
    for filters, extend in ((torch.randn(50, 1, 9), "neither"), (torch.randn(50, 5, 5), "max"), (opposed, "both")):
        figure = covariance_figure({"x": {"a": torch.nn.Parameter(filters)}})
        assert figure.axes[-1]._colorbar.extend == extend


def test_many_labels_go_into_rows_and_before_stays_beside_after():
    labels = [f"{arm}, {moment}" for arm in ("default", "mine", "mine_scrambled") for moment in ("before", "after")]
    figure = map_figure({label: {"0": torch.rand(4, 8, 8), "1": torch.rand(4, 8, 8)} for label in labels})
    axes = [axis for axis in figure.axes if axis.get_title() in labels]
    assert [axis.get_title() for axis in axes] == labels
    boxes = [axis.get_position() for axis in axes]
    for before, after in zip(boxes[::2], boxes[1::2], strict=True):
        assert before.y0 == after.y0
        assert before.x1 < after.x0
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    assert all(box.x0 >= 0 and box.x1 <= 1 and box.y0 >= 0 and box.y1 <= 1 for box in boxes)
    assert len({box.y0 for box in boxes}) == 3


@pytest.mark.parametrize("labels", [1, 2, 3, 4, 5, 9, 20])
@pytest.mark.parametrize("heads", [1, 6, 12])
def test_any_number_of_labels_is_drawn(labels, heads):
    maps = {f"arm {number}": {"0": torch.rand(heads, 4, 4)} for number in range(labels)}
    drawn = [axis.get_title() for axis in map_figure(maps).axes]
    assert [title for title in drawn if title.startswith("arm")] == list(maps)
    products = {label: {"0": WeightProducts(of["0"], of["0"][0])} for label, of in maps.items()}
    for same_scale in (True, False):
        assert (
            len([axis for axis in product_figure(products, same_scale=same_scale).axes if axis.get_title()])
            == 2 * labels
        )


def test_the_legend_of_many_labels_is_not_cut_off():
    labels = [f"previous_token_scrambled, {moment}" for moment in ("before", "a quarter", "half", "after")]
    layers = {"0": summarize(torch.rand(2, 4, 8, 8).softmax(-1))}
    figure = depth_figure(dict.fromkeys(labels, layers))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_weight_products_are_coloured_symmetrically_around_zero():
    products = {"a.0": WeightProducts(torch.randn(3, 8, 8), torch.randn(8, 8))}
    louder = {"a.0": WeightProducts(9 * torch.randn(3, 8, 8), 9 * torch.randn(8, 8))}
    same = images(product_figure({"one": products, "two": louder}))
    own = images(product_figure({"one": products, "two": louder}, same_scale=False))
    assert all(image.norm.vmin == -image.norm.vmax for image in same + own)
    assert same[0].norm is same[2].norm
    assert own[2].norm.vmax > 5 * own[0].norm.vmax
    heads = {"a.0": WeightProducts(torch.randn(6, 8, 8), torch.randn(8, 8))}
    rows = images(product_figure(dict.fromkeys(("one", "two", "three"), heads), same_scale=False))
    boxes = [(image.axes.get_position(), image.colorbar.ax.get_position()) for image in rows]
    assert len({picture.y1 for picture, _ in boxes}) > 1
    assert all(picture.y1 == pytest.approx(bar.y1, abs=1e-3) for picture, bar in boxes)  # beside their own row


@pytest.mark.parametrize(
    ("draw", "given", "got"),
    [
        (map_figure, {"a": {"0": torch.rand(2, 3, 4, 4)}}, r"as maps.mean\(0\) is}}, got \(2, 3, 4, 4\)$"),
        (map_figure, {"0": torch.rand(3, 4, 4)}, "got {'0': Tensor}$"),
        (product_figure, {"a": torch.nn.Linear(2, 2)}, r"weight_products\(site\).* got {'a': Linear}$"),
        (product_figure, {"a": {"0": 3}}, "got 3$"),
    ],
)
def test_what_is_no_layer_under_a_label_is_answered_in_one_line(draw, given, got):
    with pytest.raises(StructuredInitError, match=rf"^{draw.__name__} takes {{label: {{layer: .*{got}"):
        draw(given)
    name = "maps" if draw is map_figure else "models"
    with pytest.raises(StructuredInitError, match=got):
        draw(max_layers=2, **{name: given})  # by name, in any order


MAPS = {"a": {"0": torch.rand(2, 17, 17)}}
STATISTICS = {"a": {"0": {"entropy": [1.0]}}}
HEAD, LOSS = {"a": {"x": {"h": torch.eye(5)}}}, {"loss": {"a": [(0, 1.0)]}}
PRODUCTS = {"a": {"0": WeightProducts(torch.randn(2, 8, 8), torch.randn(8, 8))}}


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: map_figure({}), "map_figure has nothing to draw: it was given no label"),
        (lambda: map_figure({"a": {}}), "map_figure has nothing to draw: 'a' has no layers"),
        (lambda: map_figure(MAPS, max_layers=0), "map_figure: max_layers must be at least 1, got 0"),
        (lambda: map_figure(MAPS, max_heads=-1), "map_figure: max_heads must be at least 1, got -1"),
        (lambda: depth_figure({}), "depth_figure has nothing to draw: it was given no label"),
        (lambda: half_life_figure({"a": {}}), "half_life_figure has nothing to draw: 'a' has no layers"),
        (lambda: product_figure({}), "product_figure has nothing to draw: it was given no label"),
        (lambda: product_figure(PRODUCTS, side=0), "product_figure: side must be at least 1, got 0"),
        (lambda: zoom_figure(MAPS, 5, 1), "17 tokens have no rows of 5 patches after 1 prefix tokens"),
        (lambda: zoom_figure(MAPS, 4, 99), "17 tokens have no rows of 4 patches after 99 prefix tokens"),
        (
            lambda: depth_figure({"a": {"0": summarize(torch.rand(1, 2, 8, 8).softmax(-1))}}, ["entropi"]),
            "did you mean 'entropy'",
        ),
        (lambda: depth_figure(STATISTICS, []), "depth_figure: statistics must be a list of names, got []"),
        (lambda: depth_figure(STATISTICS, "loss"), "depth_figure: statistics must be a list of names, got 'loss'"),
        (lambda: token_figure(MAPS, [None] * 17), "a token is a text, bytes or a number, got None"),
        (lambda: circuit_figure({"a": {"x": torch.eye(5)}}, LOSS), "(tokens, tokens)}}}, got {'x': Tensor}"),
        (lambda: circuit_figure({"a": {"x": {"h": torch.ones(1, 5, 5)}}}, LOSS), "}}}, got (1, 5, 5)"),
        (lambda: circuit_figure({"a": {"x": {"h": np.eye(1)}}}, LOSS), "}}}, got array([[1.]])"),
        (lambda: circuit_figure({"a": {"x": {}}}, LOSS), "circuit_figure has nothing to draw: 'x' has no heads"),
        (lambda: circuit_figure(HEAD, {"loss": [(0, 1)]}), "[(step, value), …]}}, got {'loss': list}"),
        (lambda: circuit_figure(HEAD, LOSS, ["a"] * 3), "a map of shape (5, 5) is not of the 3 tokens given"),
        (lambda: save_figure(map_figure(MAPS), "figure.svg"), "save_figure writes PNG: name the file 'figure.png'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(draw, said):
    with pytest.raises(StructuredInitError, match=re.escape(said)):
        draw()


def test_a_model_without_layers_to_draw_is_named_with_the_way_to_find_them():
    products = {"a.0": WeightProducts(torch.randn(3, 8, 8), torch.randn(8, 8))}
    with pytest.raises(
        StructuredInitError,
        match=r"^'mine' has no weight products to draw: .* batch=batch\)` finds .* cross=True cross-attention as well$",
    ):
        product_figure({"default": products, "mine": {}})


def test_labels_and_layers_may_be_numbers():
    layer, filters, statistics = torch.rand(1, 5, 5), torch.rand(4, 3, 3), summarize(torch.rand(1, 1, 5, 5).softmax(-1))
    for draw in (map_figure, profile_figure, lambda given: token_figure(given, range(5))):
        assert draw({0.1: {0: layer}, 2: {0: layer}}).axes[0].get_title().partition("\n")[0] == "0.1"
    for draw in (covariance_figure, variance_figure, filter_figure):
        assert "0.1" in (draw({0.1: {0: filters}}).axes[0].get_ylabel(), draw({0.1: {0: filters}}).axes[0].get_title())
    assert depth_figure({64: {0: statistics}}).legends[0].get_texts()[0].get_text() == "64"
    circuit = circuit_figure({1: {0: {2: layer[0]}}}, {"loss": {1: [(0, 1.0)]}})
    assert [text.get_text() for part in circuit.subfigs for each in part.legends for text in each.get_texts()] == ["1"]


@pytest.mark.parametrize(("values", "lower"), [([-3.0, -1.0], -3.1), ([-1.0, 2.0], -1.15), ([0.5, 3.0], 0.0)])
def test_zero_is_the_lower_end_of_an_axis_where_nothing_is_negative(values, lower):
    (depth,) = depth_figure({"a": {"0": {"entropy": values[:1]}, "1": {"entropy": values[1:]}}}, ["entropy"]).axes
    circuit = circuit_figure({"a": {"x": {"h": torch.eye(5)}}}, {"gain": {"a": [*enumerate(values)]}})
    for axis in (depth, next(axis for axis in circuit.axes if axis.lines)):
        assert axis.get_ylim()[0] == pytest.approx(lower)
        assert axis.get_ylim()[1] > max(values)


def test_a_single_point_stands_at_a_whole_number():
    circuit = circuit_figure({"a": {"x": {"h": torch.eye(5)}}}, {"loss": {"a": [(0, 1.0)]}})
    audited = audit_figure(audit(torch.nn.TransformerEncoderLayer(24, 3, 48)))
    for axis in (next(axis for axis in circuit.axes if axis.lines), audited.axes[-1]):
        low, high = axis.get_xlim()
        assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [0]


def test_a_statistic_that_only_some_layers_have_is_drawn_of_those():
    figure = depth_figure({"a": {"0": {"entropy": [1.0, 2.0]}, "1": {}}, "b": {"1": {"mine": [1.0]}}}, ["entropy"])
    drawn = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert (drawn["a"], drawn["b"]) == ([[0, 1.5]], [])


def test_labels_of_a_low_colour_bar_do_not_touch():
    sharp = 0.79 * torch.eye(16).expand(2, 16, 16)
    bar = (figure := map_figure({"a": {"0": sharp}})).axes[-1]
    figure.draw_without_rendering()
    spans = [label.get_window_extent() for label in bar.get_yticklabels()]
    assert len(spans) > 3
    assert all(below.y1 < above.y0 for below, above in itertools.pairwise(spans))


def test_many_layers_and_heads_are_thinned_and_keep_their_numbers():
    figure = map_figure({"before": maps(heads=30, tokens=5, layers=40)}, max_layers=3, max_heads=4)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "20", "39"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["head 0", "10", "19", "29"]


@pytest.mark.parametrize("name", ["encoder_blocks_of", "vision_model_encoder_layers", "MMWWMM"])
def test_the_names_of_layers_are_never_cut_off(name):
    layers = {f"{name}.{i}.attn": torch.rand(2, 4, 4) for i in range(2)} | {"decoder.1.attn": torch.rand(2, 4, 4)}
    figure = map_figure({"before": layers, "after": layers})
    figure.draw_without_rendering()
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"{name}.0", f"{name}.1", "decoder.1"]
    assert min(label.get_window_extent().x0 for label in (*axis.get_yticklabels(), axis.yaxis.label)) >= 0
    assert map_figure({"before": {"": torch.rand(2, 4, 4)}}).axes  # a layer that is the whole model
    short = {"0": torch.rand(12, 4, 4), "1": torch.rand(12, 4, 4)}
    rows = map_figure({"a": short, "b": short, "c": short, "d": layers})  # in the last row, narrow and with long names
    rows.draw_without_rendering()
    assert max(axis.get_tightbbox().x1 for axis in rows.axes) <= rows.bbox.x1


def test_layers_of_different_resolution_share_a_figure():
    mixed = {"a.0": torch.rand(1, 4, 4), "a.1": torch.rand(2, 8, 8)}
    (image,) = images(map_figure({"before": mixed}))
    np.testing.assert_allclose(
        image.get_array()[:8, :8], mixed["a.0"][0].repeat_interleave(2, 0).repeat_interleave(2, 1)
    )


def test_a_name_stands_at_the_middle_of_its_map_whatever_the_room_beside_it():
    axis = map_figure({"before": {"pool": torch.rand(1, 1, 12), "own": torch.rand(1, 12, 12)}}).axes[0]
    assert list(axis.get_yticks()) == [0, 13 + 5.5]  # one pixel between panels


def test_products_of_two_widths_keep_their_diagonals_under_a_title_that_is_true():
    cross = WeightProducts(torch.eye(8, 5).expand(2, -1, -1), torch.eye(5, 8))
    own = WeightProducts(torch.eye(8).expand(2, -1, -1), torch.eye(8))
    figure = product_figure({"m": {"cross": cross, "blocks.0.attn": own}})
    for image, product in zip(images(figure), cross, strict=True):
        panel = image.get_array()[:8, :8].filled(np.nan)
        rows, columns = product.shape[-2:]
        np.testing.assert_array_equal(panel[:rows, :columns], np.eye(rows, columns))
        assert np.isnan(panel[rows:]).all()
        assert np.isnan(panel[:, columns:]).all()
    assert "upper left up to 8 × 8:" in figure.get_suptitle()
    assert "upper left 8 × 8:" in product_figure({"m": {"own": own}}).get_suptitle()


def test_layers_are_named_wherever_they_are_not_level_with_those_on_the_left():
    def named(figure):
        return [[label.get_text() for label in axis.get_yticklabels()] for axis in figure.axes if axis.get_title()]

    layer = torch.rand(2, 4, 4)
    given = {"a": {"x": layer, "y": layer}, "b": {"x": layer, "y": layer}}
    assert named(map_figure(given)) == [["x", "y"], ["", ""]]
    other = {"a": {"x": layer, "y": layer}, "b": {"much_longer_a_name": layer, "z": layer}}
    figure = map_figure(other)
    assert named(figure) == [["x", "y"], ["much_longer_a_name", "z"]]
    figure.draw_without_rendering()
    assert figure.axes[0].get_tightbbox().x1 < figure.axes[1].get_tightbbox().x0
    cross = WeightProducts(torch.rand(2, 8, 5), torch.rand(5, 8))
    assert named(product_figure({"m": {"x": cross, "y": cross}})) == [["x", "y"], ["x", "y"]]


def test_lines_between_image_rows_are_those_of_a_smaller_layer():
    figure = zoom_figure({"a": {"0": torch.rand(1, 4, 4), "1": torch.rand(1, 8, 8)}}, columns=2)
    frames = figure.axes[0].collections[1].get_paths()
    assert len(frames) == 2 + 4
    assert frames[0].get_extents().width == 4


def test_figures_are_written_as_png_without_pyplot_state(tmp_path):
    from matplotlib import _pylab_helpers

    figures = [
        zoom_figure({"before": maps()}, columns=4, prefix_tokens=1),
        profile_figure({"before": {"a.0": torch.rand(2, 7, 7)}}),
        token_figure({"before": maps()}, ["The", "Ġ$fox$", "\n", "\x00"]),
        depth_figure({"before": {"a.0": summarize(maps()["blocks.0.attn"][None], (4, 4), 1)}}),
    ]
    for number, figure in enumerate(figures):
        save_figure(figure, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")
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


@pytest.mark.parametrize("draw", [depth_figure, half_life_figure])
def test_names_of_layers_in_two_towers_stand_apart_below_the_axes(draw):
    names = [f"vision.layers.{i}.attn" for i in range(12)] + [f"text.transformer.{i}" for i in range(30)]
    layers = {name: torch.rand(4) + 1 for name in names}
    if draw is depth_figure:
        layers = dict.fromkeys(names, summarize(torch.rand(1, 2, 8, 8).softmax(-1)))
    figure = draw({"before": layers})
    figure.draw_without_rendering()
    axis = figure.axes[0]
    labels = [label.get_window_extent() for label in axis.get_xticklabels()]
    assert axis.get_xticklabels()[0].get_text() == "vision.0"
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(labels))
    assert axis.get_window_extent().height > 1.5 * figure.dpi


def test_layers_that_some_labels_lack_stand_at_their_own_names():
    layer, lives = summarize(torch.rand(1, 2, 8, 8).softmax(-1)), torch.ones(3)
    given = {"a": ("l.0", "l.10"), "b": ("l.2", "l.10"), "c": ("l.10",)}
    for draw, each in ((depth_figure, layer), (half_life_figure, lives)):
        axis = draw({label: dict.fromkeys(names, each) for label, names in given.items()}).axes[0]
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "2", "10"]
        places = {line.get_label(): line.get_xdata() for line in axis.lines}
        assert [np.round(places[label]).tolist() for label in given] == [[0, 2], [1, 2], [2]]


def test_thinning_keeps_both_ends():
    assert evenly(12, 3) == [0, 6, 11]
    assert evenly(2, 5) == [0, 1]


@pytest.mark.parametrize(
    ("tokens", "read", "heads", "first"),
    [
        (list("abcdefgh"), list("cdef"), None, 0),
        (torch.arange(50, 58), ["52", "53", "54", "55"], [1, 2], 1),
        (list(range(8)), list("2345"), (1, 0), 1),
    ],
)
def test_a_text_shows_its_stretch_of_the_maps_with_its_tokens_along_the_axes(tokens, read, heads, first):
    figure = token_figure({"before": maps(heads=3), "after": maps(heads=3)}, tokens, first=2, shown=4, heads=heads)
    panels = [axis for axis in figure.axes if axis.get_images() and axis.get_images()[0].get_array().shape == (4, 4)]
    assert len(panels) == 3 * 2 * 2  # layers, moments, first and last head
    np.testing.assert_allclose(panels[0].get_images()[0].get_array(), maps(heads=3)["blocks.0.attn"][first, 2:6, 2:6])
    assert panels[0].get_title() == f"before\nhead {first}"
    assert [label.get_text() for label in panels[0].get_yticklabels()] == read
    assert [label.get_text() for label in panels[-1].get_xticklabels()] == read
    assert figure.get_suptitle().splitlines()[1] == "tokens 3 to 6 of 8, 2 of 3 heads, 3 of 3 layers"


def test_names_of_tokens_are_whole_however_a_figure_is_first_drawn():
    figure = token_figure({"before": maps(tokens=5), "after": maps(tokens=5)}, ["read_shadow", "session_opened"] * 2)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    names = [label for axis in figure.axes for label in axis.get_xticklabels() if label.get_text()]
    assert min(name.get_window_extent(canvas.get_renderer()).y0 for name in names) >= 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": [1, 3]}, "token_figure: heads must be a list of numbers below 3, got [1, 3]"),
        ({"heads": 1}, "token_figure: heads must be a list of numbers below 3, got 1"),
        ({"heads": []}, "token_figure: heads must be a list of numbers below 3, got []"),
        (
            {"tokens": list("abcdefghi") * 2},
            "token_figure: 'blocks.0.attn' has maps of 17 queries and 17 keys, which are not the 18 tokens given",
        ),
        (
            {"maps": {"a": {"0": torch.rand(3, 7, 12)}}},
            "token_figure: '0' has maps of 7 queries and 12 keys, which are not the 8 tokens given",
        ),
        (
            {"maps": {"a": maps(layers=1), "b": {"x": torch.eye(8)[None]}}},
            "token_figure: labels have the same layers, got ['x'] for 'b' beside ['blocks.0.attn']",
        ),
        ({"first": 9}, "token_figure: first=9 is none of the 8 tokens"),
        ({"first": -1}, "token_figure: first=-1 is none of the 8 tokens"),
        ({"tokens": []}, "token_figure: first=0 is none of the 0 tokens"),
        ({"shown": 0}, "token_figure: shown must be at least 1, got 0"),
        ({"tokens": torch.ones(1, 8).long()}, "token_figure takes tokens of one text, as ids[0] is, got shape (1, 8)"),
    ],
)
def test_a_text_or_head_that_the_maps_do_not_have_is_refused_in_one_line(given, message):
    with pytest.raises(StructuredInitError, match=f"^{re.escape(message)}$"):
        token_figure(**{"maps": {"before": maps(heads=3)}, "tokens": list("abcdefgh"), **given})


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (2, 1), (2, 3)])
def test_the_title_of_a_text_is_whole_however_narrow_its_figure(heads, layers):
    figure = token_figure({"before": maps(heads, 8, layers)}, list("abcdefgh"))
    FigureCanvasAgg(figure).draw()
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_of_one_layer_the_mean_over_heads_is_a_marker():
    statistics = {"0": summarize(torch.rand(1, 3, 8, 8).softmax(-1))}
    figure = depth_figure({"before": statistics, "after": statistics}, ["mean_distance"])
    markers = {line.get_label(): line.get_marker() for line in figure.axes[0].get_lines()}
    assert (markers["before"], markers["after"]) == ("D", "D")
    two = depth_figure({"before": statistics | {"1": statistics["0"]}}, ["mean_distance"]).axes[0].get_lines()
    assert {line.get_label(): line.get_marker() for line in two}["before"] == "None"


@pytest.mark.parametrize("draw", [filter_figure, variance_figure])
def test_a_filter_of_many_taps_is_a_strip_that_can_be_seen(draw):
    picture = draw({"x": {"a": torch.rand(4, 1, 65)}}).axes[0].get_images()[0].get_array()
    assert np.isfinite(np.asarray(picture)).any(axis=1).sum() == 13


def test_a_circuit_without_maps_or_curves_is_refused_in_one_line():
    arm = {"before": {"head 0": torch.eye(8)}}
    for given, what in (({"a": arm}, {}), "quantity"), (({}, {"loss": {"a": [(0, 1)]}}), "arm"):
        with pytest.raises(StructuredInitError, match=f"^circuit_figure has nothing to draw: it was given no {what}$"):
            circuit_figure(*given)


@pytest.mark.parametrize(
    ("token", "read"),
    [
        ("Ġfox", "␣fox"),
        ("\n\n", "⏎⏎"),
        (" a\u00a0\r", "␣a␣␣"),
        ("\x07", "�"),
        ("authentication_failure", "authent…ailure"),
        ("$", r"\$"),
        ("é".encode(), "é"),
        (b"\xe2\x96", "�"),
    ],
)
def test_a_token_is_written_so_that_it_can_be_read(token, read):
    assert readable(token) == read


def test_the_circuit_has_a_map_for_each_head_and_moment_and_a_line_for_each_arm():
    maps = {
        arm: {moment: {"layer 1": torch.eye(5), "layer 2": torch.full((5, 5), 0.2)} for moment in ("before", "after")}
        for arm in ("default", "induction")
    }
    curve = [(0, 3.0), (10, 1.0)]
    curves = {
        "loss": {"default": curve, "induction": curve[:1], "scrambled": curve},
        "induction score": {"default": [(0, 0.1), (10, 0.9)]},
    }
    figure = circuit_figure(maps, curves, tokens=list("ab ab"), title="no plateau")
    legends = [legend for part in figure.subfigs for legend in part.legends]
    assert [text.get_text() for text in legends[0].get_texts()] == ["default", "induction", "scrambled"]
    images = [axis for axis in figure.axes if axis.images]
    assert [axis.images[0].get_array().tolist() for axis in images[:4:2]] == [
        layer.tolist() for layer in maps["default"]["before"].values()
    ]
    assert len(images) == 8
    assert [axis.get_ylabel() for axis in images if axis.get_ylabel()] == ["layer 1", "layer 2"] * 2
    assert [label.get_text() for label in images[0].get_yticklabels()] == ["a", "b", "␣", "a", "b"]
    loss, score = (axis for axis in figure.axes if axis.lines)
    drawn = {line.get_label(): [*zip(*line.get_data(), strict=True)] for line in loss.lines}
    assert drawn == {"default": curve, "induction": curve[:1], "scrambled": curve}
    assert len({line.get_color() for line in loss.lines}) == 3
    assert score.lines[0].get_color() == loss.lines[0].get_color()
    figure.canvas.draw()


def test_a_head_of_another_moment_has_a_row_of_its_own():
    moments = {"before": {"h": torch.zeros(5, 5)}, "after": {"g": torch.ones(5, 5)}}
    axes = [axis for axis in circuit_figure({"a": moments}, LOSS).axes if not axis.lines][:4]
    assert [axis.images[0].get_array()[0, 0] if axis.images else None for axis in axes] == [0, None, None, 1]
    assert [axis.get_ylabel() for axis in axes] == ["h", "", "g", ""]


@pytest.mark.parametrize(
    "curve", [([0, 1, 2], [1.0, 2.0, 3.0]), (0, 1.0), {0: 1.0}, [(0, 1.0), 2.0], [(0, "low")]], ids=str
)
def test_a_curve_that_is_no_list_of_pairs_is_refused_in_one_line(curve):
    said = f"takes curves {{quantity: {{arm: [(step, value), …]}}}}, got {curve} for 'default' of 'loss'"
    with pytest.raises(StructuredInitError, match=f"^circuit_figure {re.escape(said)}$"):
        circuit_figure({"default": {"before": {"head 0": torch.eye(8)}}}, {"loss": {"default": curve}})
