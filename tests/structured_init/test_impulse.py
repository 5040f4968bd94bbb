"""Impulse as an initializer: offsets and their maps, parts, sharing, real images, presets and messages.

SparePositions: attention can neither read nor write the directions of the positions, and all else is kept.
"""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import Apart
from timm.layers import build_sincos2d_pos_embed
from torch import nn
from transformers import CLIPConfig, CLIPModel

from structured_init import (
    Compose,
    Mimetic,
    Positions,
    StructuredInitError,
    TokenLayout,
    attention_sites,
    initialize,
    preset,
    register_positions,
)
from structured_init.analysis import capture_attention, impulse_mass
from structured_init.attention.positions import NO_GRID
from structured_init.impulse import AdamSolver, Impulse, SeparableSolver, SparePositions, SvdSolver
from structured_init.impulse.impulse import draw_offsets
from structured_init.impulse.solver import impulse_maps
from structured_init.util.draws import Draws

CODES = Positions("codes", kappa=2.0)
EVERYWHERE = settings(max_examples=30, deadline=None, derandomize=True)
SHORT = AdamSolver(iterations=2)
SOLVERS = [SHORT, SvdSolver(), SeparableSolver()]


@pytest.fixture
def pooled_vit(tiny_vit):
    """The small ViT without a class token, which the adam solver needs."""
    return lambda **changes: tiny_vit(**{"class_token": False, "global_pool": "avg", **changes})


def query_key(model):
    return [(site.query, site.key) for site in attention_sites(model)]


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("solver", SOLVERS, ids=["adam", "svd", "separable"])
def test_queries_keys_and_positions_are_written_and_nothing_else(pooled_vit, solver):
    model = pooled_vit()
    nn.init.normal_(model.blocks[0].attn.qkv.bias)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    values = [site.value for site in attention_sites(model)]
    report = initialize(model, Impulse(solver=solver))
    written = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert written == {"blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight", "pos_embed"}
    assert {name for entry in report.changed for name in entry.names} == written
    assert all(torch.equal(site.value, value) for site, value in zip(attention_sites(model), values, strict=True))


@pytest.mark.parametrize("solver", SOLVERS, ids=["adam", "svd", "separable"])
def test_a_value_output_part_changes_no_query_or_key(pooled_vit, solver):
    alone, composed = pooled_vit(), pooled_vit()
    initialize(alone, Impulse(solver=solver), seed=3)
    start = Compose([Impulse(solver=solver), Mimetic(query_key=False, positions="keep")])
    initialize(composed, start, seed=3)
    assert_same(query_key(alone), query_key(composed))
    assert torch.equal(alone.pos_embed, composed.pos_embed)


@pytest.mark.parametrize(("solver", "shared"), [(SHORT, True), (SvdSolver(), False), (SeparableSolver(), False)])
def test_only_adam_shares_one_solution_unless_asked(pooled_vit, solver, shared):
    for asked in (None, True, False):
        model = pooled_vit(depth=3)
        initialize(model, Impulse(solver=solver, shared=asked))
        first, *others = query_key(model)
        expected = shared if asked is None else asked
        assert all(torch.equal(first[0], other[0]) == expected for other in others)


@pytest.mark.parametrize(("solver", "order"), [("adam", "random"), ("svd", "fixed"), ("separable", "random")])
def test_offsets_are_those_of_the_solvers_source_unless_given(pooled_vit, solver, order):
    site = attention_sites(pooled_vit(num_heads=16))[0]
    for draws in map(Draws, range(3)):
        default = Impulse(solver=solver).head_offsets(site, draws)
        assert torch.equal(default, Impulse(solver=solver, offsets=order).head_offsets(site, draws))


def test_own_positions_are_the_sources(pooled_vit):
    model = pooled_vit()
    initialize(model, Impulse(solver=SHORT))
    torch.testing.assert_close(model.pos_embed[0].detach(), build_sincos2d_pos_embed([4, 4], 16), rtol=0, atol=1e-5)
    for solver, control in (
        (SvdSolver(), Positions("gaussian", gain=18.0)),
        (SeparableSolver(), Positions("codes", kappa=2.0, gain=0.7)),
    ):
        alone = pooled_vit()
        initialize(alone, control, seed=1)
        initialize(model, Impulse(solver=solver), seed=1)
        assert torch.equal(model.pos_embed, alone.pos_embed)


@pytest.mark.parametrize("solver", SOLVERS, ids=["adam", "svd", "separable"])
def test_kept_positions_are_those_that_an_earlier_part_wrote(pooled_vit, solver):
    own, kept = pooled_vit(), pooled_vit()
    initialize(own, Impulse(solver=solver))
    initialize(kept, Compose([solver.own_positions(), Impulse(solver=solver, positions="keep")]))
    assert_same(query_key(own), query_key(kept))


@pytest.mark.parametrize("solver", ["svd", "separable"])
def test_the_class_token_has_no_part_in_the_solution(tiny_vit, pooled_vit, solver):
    with_token, without = tiny_vit(), pooled_vit()
    class_row = with_token.pos_embed[:, 0].clone()
    initialize(with_token, Impulse(solver=solver))
    initialize(without, Impulse(solver=solver))
    assert_same(query_key(with_token), query_key(without))
    assert torch.equal(with_token.pos_embed[:, 0], class_row)


def test_another_scale_in_the_solution_is_put_into_queries_and_keys(pooled_vit):
    """With no iterations the factors are those drawn; the host's logits must then be 0.1 q·k of them."""
    drawn, scaled = pooled_vit(), pooled_vit()
    initialize(drawn, Impulse(solver=AdamSolver(iterations=0)))
    initialize(scaled, Impulse(solver=AdamSolver(iterations=0, scale=0.1)))
    for (query, key), (other_query, other_key) in zip(query_key(drawn), query_key(scaled), strict=True):
        torch.testing.assert_close(8**-0.5 * other_query @ other_key.mT, 0.1 * query @ key.mT)


def test_adam_solves_for_real_images_layer_after_layer(pooled_vit):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model, other = pooled_vit(), pooled_vit()
    solver = AdamSolver(iterations=3, pseudo_input="batch")
    initialize(model, Impulse(solver=solver, shared=False), batch=images)
    initialize(other, Impulse(solver=solver, shared=False), batch=2 * images + 1)
    first, second = query_key(model)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(query_key(other)[0][0], first[0])


def test_a_model_without_positions_can_be_solved_for_noise(pooled_vit):
    report = initialize(pooled_vit(pos_embed="none"), Impulse(solver=AdamSolver(iterations=2, pseudo_input="U")))
    assert report.skipped == {"positions": "no table of positions was found"}
    assert len(report.changed) == 2
    assert all("no known positions, by which heads could find their impulse" in each for each in report.warnings)
    assert len(report.warnings) == 2


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        (Impulse(solver=SHORT), {"class_token": True}, "'blocks.0.attn' has 1 class or register tokens"),
        (Impulse(5), {}, "a 5×5 kernel is larger than the 4×4 grid of 'blocks.0.attn'"),
        (Impulse(), {"pos_embed": "none"}, "no position embedding was recognized"),
        (Impulse(solver=AdamSolver(pseudo_input="batch")), {}, "needs real images: initialize"),
    ],
)
def test_what_cannot_be_started_is_one_line(pooled_vit, start, changes, message):
    with pytest.raises(StructuredInitError) as caught:
        initialize(pooled_vit(**changes), start)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_positions_that_are_all_zero_are_one_line(tiny_vit):
    model = tiny_vit()
    nn.init.zeros_(model.pos_embed)
    with pytest.raises(StructuredInitError, match=r"^Impulse: the position embedding is all zero"):
        initialize(model, Impulse(solver="svd", positions="keep"))


def spared_and_all(vit, *parts):
    model = vit()
    initialize(model, Compose([CODES, *parts]))
    return model, attention_sites(model)


def test_what_is_spared_is_exactly_the_span_of_the_positions(tiny_vit):
    """The projector from numpy's pseudo-inverse; positions of a class token do not count."""
    values = Mimetic(query_key=False, positions="keep")
    model, spared = spared_and_all(tiny_vit, values, SparePositions())
    _, plain = spared_and_all(tiny_vit, values)
    positions = model.pos_embed[0, 1:].detach().double().numpy()
    positions = positions - positions.mean(0)
    free = np.eye(16) - np.linalg.pinv(positions, rcond=1e-3) @ positions
    for site, before in zip(spared, plain, strict=True):
        np.testing.assert_allclose(site.value, free @ before.value.double().numpy(), atol=1e-6)
        np.testing.assert_allclose(site.output, before.output.double().numpy() @ free, atol=1e-6)
        assert torch.equal(site.query, before.query)


@pytest.mark.parametrize(("read", "write"), [(True, False), (False, True)])
def test_reading_and_writing_are_two_choices(tiny_vit, read, write):
    _, spared = spared_and_all(tiny_vit, SparePositions(read=read, write=write))
    _, plain = spared_and_all(tiny_vit)
    for site, before in zip(spared, plain, strict=True):
        assert torch.equal(site.value, before.value) != read
        assert torch.equal(site.output, before.output) != write


def test_the_preset_separable_keeps_attention_on_its_impulse_in_every_one_of_twelve_layers():
    """Without SparePositions mimetic values erase the positions, and the mass with them."""
    composed = preset("separable")
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 2, "embed_dim": 192, "depth": 12, "num_heads": 3}
    model = timm.models.VisionTransformer(**sizes, class_token=False, global_pool="avg", num_classes=3).eval()
    initialize(model, composed)
    maps = capture_attention(model, torch.randn(4, 3, 16, 16), max_samples=None)
    impulse = composed.initializers[0]
    masses = [
        impulse_mass(maps[site.name], impulse.head_offsets(site, Draws(0)), site.grid).mean().item()
        for site in attention_sites(model)
    ]
    assert len(masses) == 12
    assert min(masses) > 0.25  # of white noise; of photographs 0.44, see docs/impulse.md


def drawn(order, heads, kernel_size, seed=0):
    return draw_offsets(order, heads, kernel_size, generator=torch.Generator().manual_seed(seed)).tolist()


def test_the_fixed_order_is_centre_up_right_left_down_and_the_corners_and_repeats():
    order = [[0, 0], [-1, 0], [0, 1], [0, -1], [1, 0], [-1, -1], [-1, 1], [1, -1], [1, 1]]
    assert drawn("fixed", 11, 3) == [*order, *order[:2]]


def test_random_offsets_come_with_replacement_and_equally_often():
    offsets = drawn("random", 9000, 3)
    counts = [offsets.count([row, column]) for row in (-1, 0, 1) for column in (-1, 0, 1)]
    assert sum(counts) == 9000
    assert max(abs(count - 1000) for count in counts) < 5 * 30  # binomial: standard deviation 29.8


@EVERYWHERE
@given(
    st.tuples(st.integers(3, 6), st.integers(3, 6)),
    st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
    st.sampled_from(["zero", "clamp"]),
)
def test_the_map_moves_every_pixel_to_its_offset(grid, offset, border):
    (found,) = impulse_maps(torch.tensor([offset]), grid, border=border)
    rows, columns = grid
    for y in range(rows):
        for x in range(columns):
            target = (y + offset[0], x + offset[1])
            inside = 0 <= target[0] < rows and 0 <= target[1] < columns
            expected = torch.zeros(rows, columns, dtype=torch.float64)
            if inside or border == "clamp":
                expected[min(max(target[0], 0), rows - 1), min(max(target[1], 0), columns - 1)] = 1
            assert torch.equal(found[y * columns + x], expected.flatten())


class Registers(nn.Module):
    """A vision transformer of unknown attention, with tokens that stand before the patches, which may not all be."""

    def __init__(self, kept=19):
        super().__init__()
        self.kept = kept
        self.image_size, self.patch_size = 8, 2
        self.patch, self.pos_embed = nn.Conv2d(3, 12, 2, 2), nn.Parameter(torch.randn(1, 16, 12))
        self.extra, self.blocks = nn.Parameter(torch.randn(1, 3, 12)), nn.Sequential(Apart(), Apart())

    def forward(self, images):
        x = self.patch(images).flatten(2).mT + self.pos_embed
        return self.blocks(torch.cat([self.extra.expand(len(x), -1, -1), x], dim=1)[:, : self.kept])


def test_tokens_that_are_not_all_known_are_counted_and_the_way_out_works():
    images = torch.randn(2, 3, 8, 8)
    with pytest.raises(StructuredInitError, match="tokens whose rows and columns are not known"):
        initialize(Registers(17), Impulse(), batch=images)
    register_positions(Registers)(lambda model: TokenLayout((4, 4), 3, model.pos_embed))
    assert attention_sites(Registers(), batch=images)[0].prefix_tokens == 3
    initialize(Registers(), Impulse(), batch=images)


def test_beside_images_a_text_has_no_grid_and_the_message_says_how_it_is_left_out():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = {**sizes, "vocab_size": 9, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 2}
    images = {**sizes, "image_size": 16, "patch_size": 4}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=images, projection_dim=8))
    with pytest.raises(StructuredInitError, match=r"'text_model\.encoder.* leave it out with where=$"):
        initialize(model, Impulse())
    initialize(model, Impulse(where="vision_model.*"))
    name = "text_model.embeddings.position_embedding.weight"
    before = model.get_parameter(name).detach().clone()
    report = initialize(model, Positions("sincos", trainable=False))
    assert report.skipped == {name: NO_GRID.format("sincos")}
    assert torch.equal(before, model.get_parameter(name))
    assert [each.names[0] for each in report.changed] == ["vision_model.embeddings.position_embedding.weight"]
    frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
    assert frozen == ["vision_model.embeddings.position_embedding.weight"]
