"""Impulse as an initializer: parts, draws, sharing, real images, presets and messages."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from timm.layers import build_sincos2d_pos_embed
from torch import nn

import structured_init
from lightning_modules.cli.config_names import read_config
from structured_init import (
    AttentionLayout,
    Compose,
    Mimetic,
    Positions,
    Projection,
    StructuredInitError,
    attention_sites,
    initialize,
    register_attention,
)
from structured_init.attention.impulse import AdamSolver, Impulse, SeparableSolver, SvdSolver
from structured_init.attention.impulse.inputs import real_tokens
from structured_init.draws import Draws
from structured_init.plan import Weights

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


@pytest.mark.parametrize("solver", SOLVERS, ids=["adam", "svd", "separable"])
def test_restricting_the_layers_changes_no_other_draw_and_equal_seeds_agree(pooled_vit, solver):
    whole, again, part = pooled_vit(), pooled_vit(), pooled_vit()
    initialize(whole, Impulse(solver=solver), seed=3)
    state = torch.get_rng_state()
    initialize(again, Impulse(solver=solver), seed=3)
    initialize(part, Impulse(solver=solver, where="blocks.1.attn"), seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(query_key(whole), query_key(again))
    assert_same(query_key(whole)[1:], query_key(part)[1:])


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
        covering = Impulse(solver=solver, offsets="covering").head_offsets(site, draws).tolist()
        assert len({tuple(offset) for offset in covering}) == 9


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
    dry = pooled_vit()
    before = {name: tensor.clone() for name, tensor in dry.state_dict().items()}
    initialize(dry, Compose([solver.own_positions(), Impulse(solver=solver, positions="keep")]), dry_run=True)
    assert all(torch.equal(value, before[name]) for name, value in dry.state_dict().items())


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


def test_real_images_give_what_the_layer_is_called_with(pooled_vit):
    model, images = pooled_vit(), torch.randn(3, 3, 8, 8)
    seen = []
    handle = model.blocks[1].attn.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model.eval()(images)
    handle.remove()
    weights = Weights(model)
    found = real_tokens(weights, attention_sites(weights)[1], images)
    torch.testing.assert_close(found.float(), seen[0])
    weights.write(model.pos_embed, model.pos_embed.detach() + 1, "test")  # planned, and not in the model yet
    assert not torch.equal(real_tokens(weights, attention_sites(weights)[1], images), found)


def test_adam_solves_for_real_images_layer_after_layer(pooled_vit):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model, other = pooled_vit(), pooled_vit()
    solver = AdamSolver(iterations=3, pseudo_input="batch")
    initialize(model, Impulse(solver=solver, shared=False), batch=images)
    initialize(other, Impulse(solver=solver, shared=False), batch=2 * images + 1)
    first, second = query_key(model)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(query_key(other)[0][0], first[0])


def test_the_first_layer_may_have_another_pseudo_input(pooled_vit):
    model, plain = pooled_vit(depth=3), pooled_vit(depth=3)
    initialize(model, Impulse(solver=AdamSolver(iterations=2, pseudo_input="G", later_pseudo_input="P")))
    initialize(plain, Impulse(solver=SHORT))
    first, second, third = query_key(model)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(second[0], third[0])
    assert torch.equal(second[0], query_key(plain)[0][0])


def test_a_model_without_positions_can_be_solved_for_noise(pooled_vit):
    report = initialize(pooled_vit(pos_embed="none"), Impulse(solver=AdamSolver(iterations=2, pseudo_input="U")))
    assert list(report.skipped) == ["positions"]
    assert report.skipped["positions"] == (
        "the model has no position embedding of a known class: describe it with "
        "structured_init.register_positions, or say positions='keep'"
    )
    assert len(report.changed) == 2


class WrongGrid(nn.Module):
    """An attention layer of four tokens inside a ViT of sixteen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 16))


@register_attention(WrongGrid, grid=(2, 2))
def wrong_grid(module):
    query, key, value = (Projection(module.weight, 2, 8, start=16 * i) for i in range(3))
    return AttentionLayout(query=query, key=key, value=value, output=Projection(module.weight, 2, 8, start=48))


def broken(model, how):
    if how == "positions":
        model.pos_embed = nn.Parameter(torch.zeros(1, 15, 16))
    elif how == "grid":
        model.blocks[0].attn = WrongGrid()
    return model


@pytest.mark.parametrize(
    ("start", "changes", "how", "message"),
    [
        (Impulse(solver=SHORT), {"class_token": True}, "", "'blocks.0.attn' has 1 class or register tokens"),
        (Impulse(5), {}, "", "a 5×5 kernel is larger than the 4×4 grid of 'blocks.0.attn'"),
        (Impulse(offsets="covering"), {}, "", "covering needs at least 9 heads, got 2"),
        (Impulse(), {"pos_embed": "none"}, "", "no position embedding was recognized"),
        (Impulse(solver="separable"), {"pos_embed": "none"}, "", "no position embedding was recognized"),
        (Impulse(), {}, "positions", "'pos_embed' holds 15 grid positions, which a 4×4 grid does not match"),
        (Impulse(), {}, "grid", "the 2×2 grid of 'blocks.0.attn' does not match the positions 'pos_embed' on 4×4"),
        (Impulse(solver=AdamSolver(pseudo_input="batch")), {}, "", "needs real images: initialize"),
    ],
)
def test_what_cannot_be_started_is_one_line_and_leaves_the_model_as_it_was(pooled_vit, start, changes, how, message):
    model = broken(pooled_vit(**changes), how)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StructuredInitError) as caught:
        initialize(model, start)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("solver", ["svd", "separable"])
def test_positions_that_are_all_zero_are_one_line(tiny_vit, solver):
    model = tiny_vit()
    nn.init.zeros_(model.pos_embed)
    with pytest.raises(StructuredInitError, match=r"^Impulse: the position embedding is all zero"):
        initialize(model, Impulse(solver=solver, positions="keep"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Impulse(4), "kernel_size must be odd, such as 3 or 5, got 4"),
        (lambda: Impulse(solver="seperable"), "unknown solver 'seperable': did you mean 'separable'?"),
        (lambda: Impulse(offsets="all"), "offsets must be random or fixed or covering, got 'all'"),
        (lambda: Impulse(border="wrap"), "border must be zero or clamp, got 'wrap'"),
        (lambda: Impulse(positions="sincos"), "positions must be own or keep, got 'sincos'"),
        (lambda: AdamSolver(pseudo_input="Q"), "pseudo_input must be one of P, U, G, A, B, batch, got 'Q'"),
        (lambda: AdamSolver(iterations=-1), "iterations must be at least 0, got -1"),
        (lambda: AdamSolver(scale=0.0), "scale must be positive or null, got 0.0"),
        (lambda: SvdSolver(norm=0.0), "norm must be positive, got 0.0"),
        (lambda: SeparableSolver(strength=-1.0), "strength must not be negative, got -1.0"),
        (lambda: SeparableSolver(kappa=0.0), "kappa must be positive or null, got 0.0"),
    ],
)
def test_wrong_arguments_are_one_line(as_installed, build, message):
    with pytest.raises(StructuredInitError, match=re.escape(message)):
        build()


def test_query_key_normalization_is_reported(pooled_vit):
    report = initialize(pooled_vit(qk_norm=True), Impulse())
    assert any("normalizes queries and keys" in note for note in report.notes.values())


def built(node, **replacements):
    """An object of a preset as its YAML says, with some arguments replaced, also those that the YAML leaves out."""
    if isinstance(node, list):
        return [built(item, **replacements) for item in node]
    if not isinstance(node, dict):
        return node
    classes = {"Impulse": Impulse, "AdamSolver": AdamSolver, "SvdSolver": SvdSolver, "SeparableSolver": SeparableSolver}
    cls = classes.get(node["class_path"]) or getattr(structured_init, node["class_path"])
    arguments = {key: built(value, **replacements) for key, value in node.get("init_args", {}).items()}
    taken = inspect.signature(cls).parameters
    return cls(**arguments | {key: value for key, value in replacements.items() if key in taken})


@pytest.mark.parametrize(
    ("name", "frozen", "kaiming", "value_output"),
    [
        ("structured_2401", True, True, 0),
        ("structured_2404", True, True, 0),
        ("impulse_batch", True, True, 0),
        ("structured_2505", False, True, -0.4),
        ("mimetic_circulated", True, True, -0.4),
        ("separable", False, False, -0.4 * (1 - 10 / 64)),  # 10 of 64 directions are those of 6 × 6 positions
        ("impulse", False, False, 0),
        ("codes", False, False, 0),
    ],
)
def test_presets_bring_the_published_surroundings(pooled_vit, name, frozen, kaiming, value_output):
    tree = read_config(f"init/{name}")["init"]["initializer"]
    host, model = pooled_vit(img_size=12, embed_dim=64), pooled_vit(img_size=12, embed_dim=64)
    start = built(tree, iterations=2)
    report = initialize(model, start, batch=torch.randn(2, 3, 12, 12) if start.needs_batch else None)
    assert model.pos_embed.requires_grad == (not frozen)
    assert not torch.equal(model.pos_embed, host.pos_embed)
    bias = model.blocks[0].mlp.fc1.bias
    assert (bias.abs().max() > 0) == kaiming  # timm's are zero, PyTorch's U(±1/√fan_in)
    assert bias.abs().max() <= 64**-0.5
    product = torch.einsum("hdk,hkd->d", attention_sites(model)[0].value, attention_sites(model)[0].output)
    assert product.mean().item() == pytest.approx(value_output, abs=0.03)
    assert report.initializer == repr(start)


def test_real_images_are_all_that_the_batch_preset_adds_to_its_control():
    preset, control = (read_config(f"init/{name}") for name in ("impulse_batch", "structured_2404"))
    solver = preset["init"]["initializer"]["init_args"]["initializers"][2]["init_args"]["solver"]
    assert solver.pop("init_args") == {"pseudo_input": "batch"}
    assert preset == control


def test_the_control_of_our_presets_has_their_positions(pooled_vit):
    for name in ("impulse", "separable"):
        tree, control = (read_config(f"init/{preset}")["init"]["initializer"] for preset in (name, "codes"))
        structured, alone = pooled_vit(), pooled_vit()
        initialize(structured, built(tree), seed=2)
        initialize(alone, built(control), seed=2)
        assert torch.equal(structured.pos_embed, alone.pos_embed)
