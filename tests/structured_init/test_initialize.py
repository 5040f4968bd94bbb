"""The contract of ``initialize``: in place, named draws, nothing else touched."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hosts import Does, differing, seeded, values
from timm.models.convmixer import ConvMixer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from structured_init import (
    AdamSolver,
    Compose,
    DeltaOrthogonal,
    FilterCovariance,
    Impulse,
    Initializer,
    KaimingUniform,
    Mimetic,
    Positions,
    SpatialFilters,
    StructuredInitError,
    TruncatedNormal,
    UniformProjections,
    attention_sites,
    freeze,
    initialize,
)
from structured_init.weights import Weights

BOTH = Compose([KaimingUniform(), Mimetic()])


def fill(number, suffix=".weight"):
    """An initializer that fills what its name selects."""

    def does(weights):
        for name, parameter in weights.model.named_parameters():
            if name.endswith(suffix):
                weights.write(parameter, torch.full(parameter.shape, number), "Fill")

    return Does(does)


def test_what_is_edited_in_half_precision_is_rounded_once():
    def adds(weights):
        for _ in range(64):
            weights.edit(weights.model.weight, "Adds").add_(2**-10)  # less than bfloat16 tells from 1

    model = nn.Linear(3, 2).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    initialize(model, Does(adds))
    assert model.weight.unique().tolist() == [1.0625]


def test_the_start_does_not_depend_on_the_global_seed_or_the_weights_before(tiny_vit):
    models = tiny_vit(seed=1), tiny_vit(seed=2)
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        initialize(model, BOTH, seed=3)
    left, right = (model.state_dict() for model in models)
    untouched = {name for name in left if not torch.equal(left[name], right[name])}
    assert untouched == {"cls_token", "pos_embed"}  # the row of the class token is the host's own
    assert torch.equal(left["pos_embed"][:, 1:], right["pos_embed"][:, 1:])


def test_adding_a_part_changes_no_draw_of_the_other(tiny_vit):
    query_key, value_output, both = tiny_vit(), tiny_vit(), tiny_vit()
    untouched = attention_sites(tiny_vit())
    initialize(query_key, Mimetic(value_output=False))
    initialize(value_output, Mimetic(query_key=False))
    initialize(both, Mimetic())
    sites = zip(*map(attention_sites, (query_key, value_output, both)), untouched, strict=True)
    for only_qk, only_vo, together, host in sites:
        for name in ("query", "key"):
            assert torch.equal(getattr(only_qk, name), getattr(together, name))
            assert torch.equal(getattr(only_vo, name), getattr(host, name))
        for name in ("value", "output"):
            assert torch.equal(getattr(only_vo, name), getattr(together, name))
            assert torch.equal(getattr(only_qk, name), getattr(host, name))


def vit():
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    return VisionTransformer(**sizes, class_token=False, global_pool="avg")


def convmixer():
    return ConvMixer(8, 2, kernel_size=3, patch_size=2, num_classes=3)


# Every initializer that draws for each layer of its own, a host, and its second layer.
RESTRICTED = {
    "Mimetic": (partial(Mimetic, positions="keep"), vit, "blocks.1.attn"),
    "Impulse, SVD": (partial(Impulse, positions="keep"), vit, "blocks.1.attn"),
    "Impulse, separable": (partial(Impulse, solver="separable", positions="keep"), vit, "blocks.1.attn"),
    "Impulse, Adam": (partial(Impulse, solver=AdamSolver(iterations=2), positions="keep"), vit, "blocks.1.attn"),
    "UniformProjections": (UniformProjections, vit, "blocks.1.attn"),
    "FilterCovariance": (FilterCovariance, convmixer, "blocks.1.*"),
    "SpatialFilters": (partial(SpatialFilters, "impulse"), convmixer, "blocks.1.*"),
    "DeltaOrthogonal": (DeltaOrthogonal, convmixer, "blocks.1.*"),
}


@pytest.mark.parametrize("name", RESTRICTED)
def test_restricting_the_layers_changes_no_other_draw(name):
    start, host, second = RESTRICTED[name]
    everywhere, restricted = seeded(host), seeded(host)
    before = values(restricted)
    initialize(everywhere, start(), seed=3)
    initialize(restricted, start(where=second), seed=3)
    changed = differing(before, restricted)
    assert changed
    assert all(written.startswith("blocks.1.") for written in changed)
    assert not changed & differing(values(everywhere), restricted)


def test_later_members_of_compose_see_and_overwrite_earlier_ones(tiny_vit):
    def double(weights):
        for site in attention_sites(weights):
            site.by("Double").value = 2 * site.value

    model = tiny_vit()
    report = initialize(model, Compose([fill(3.0, "qkv.weight"), Does(double)]))
    assert model.blocks[0].attn.qkv.weight.unique().tolist() == [3.0, 6.0]
    assert (model.blocks[0].attn.qkv.weight[:32] == 3).all()
    assert (model.blocks[0].attn.qkv.weight[32:] == 6).all()
    entry = next(entry for entry in report.entries if entry.names == ("blocks.0.attn.qkv.weight",))
    assert entry.set_by == ("Fill", "Double")


def test_a_buffer_can_be_set_and_is_reported():
    model = nn.BatchNorm1d(4)
    shift = Does(lambda weights: weights.write(weights.model.running_mean, torch.full((4,), 0.25), "Shift"))
    report = initialize(model, shift)
    assert model.running_mean.tolist() == [0.25] * 4
    assert [entry.names for entry in report.entries] == [("weight",), ("bias",), ("running_mean",)]


NAN, INFINITY = torch.full((5, 16), float("nan")), torch.full((5, 16), float("inf"))


@pytest.mark.parametrize(
    ("dtype", "how", "value", "message"),
    [
        (torch.float32, "write", NAN, "holds values that are not finite in torch.float32"),
        (torch.float32, "edit", INFINITY, "holds values that are not finite in torch.float32"),
        (torch.float16, "write", torch.full((5, 16), 1e5), "holds values that are not finite in torch.float16"),
        (torch.float32, "write", torch.zeros(16, 5), r"has shape \(5, 16\), but its new value \(16, 5\)"),
        (torch.float32, "write", torch.zeros(16), r"has shape \(5, 16\), but its new value \(16,\)"),
    ],
)
def test_a_value_that_cannot_stand_there_is_refused(tiny_vit, dtype, how, value, message):
    def wrong(weights):
        if how == "write":
            weights.write(weights.model.head.weight, value, "Wrong")
        else:
            weights.edit(weights.model.head.weight, "Wrong").copy_(value)

    model = tiny_vit().to(dtype)
    before = values(model)
    with pytest.raises(StructuredInitError, match=f"'head.weight' {message}"):
        initialize(model, Does(wrong))
    assert not differing(before, model)


def test_a_tensor_of_another_model_is_refused(tiny_vit):
    stranger = nn.Parameter(torch.zeros(2, 3))
    with pytest.raises(StructuredInitError, match=r"a tensor of shape \(2, 3\) is no parameter or buffer of the model"):
        Weights(tiny_vit()).write(stranger, torch.zeros(2, 3), "me")


@pytest.mark.parametrize("start", [Mimetic(), KaimingUniform()])
def test_a_model_without_memory_is_refused_in_one_line(tiny_vit, start):
    with pytest.raises(StructuredInitError, match=r"is on the meta device and has no memory: call model.to_empty"):
        initialize(tiny_vit().to("meta"), start)


def test_a_model_without_memory_can_be_frozen(tiny_vit):
    model = tiny_vit().to("meta")
    freeze(model, Positions(trainable=False))
    assert not model.pos_embed.requires_grad


@pytest.mark.parametrize("start", [Mimetic(), Compose([KaimingUniform(), Mimetic()]), TruncatedNormal()])
def test_the_overlay_holds_one_layer_at_a_time(tiny_vit, start, monkeypatch):
    model, held = tiny_vit(depth=6), []
    flush = Weights.flush

    def watched(weights):
        kept = [u.value.numel() for u in weights.updates.values() if u.value is not None]
        held.append(sum(kept))
        flush(weights)
        assert not [u for u in weights.updates.values() if u.value is not None]

    monkeypatch.setattr(Weights, "flush", watched)
    initialize(model, start)
    attention = sum(parameter.numel() for parameter in model.blocks[0].attn.parameters())
    feed_forward = sum(parameter.numel() for parameter in model.blocks[0].mlp.fc1.parameters())
    assert 0 < max(held) <= max(attention, feed_forward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_set_whole_is_reported_beside_what_stood_there_and_lies_elsewhere_until_it_is_written(dtype):
    def sets(weights):
        whole = torch.full((2, 3), 4.0)
        weights.write(weights.model.weight, whole, "Whole", own=True)
        kept = weights.read(weights.model.weight)
        assert kept.dtype == torch.float32
        assert kept.data_ptr() == whole.data_ptr()
        assert torch.equal(weights.model.weight, before)
        weights.edit(weights.model.weight, "Whole")[0, 0] = 2.0  # sees what was set

    model = nn.Linear(3, 2).to(dtype)
    before = model.weight.detach().clone()
    (entry,) = initialize(model, Does(sets)).changed
    assert model.weight.tolist() == [[2.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    assert entry.before.mean == pytest.approx(before.double().mean().item(), rel=1e-5)
    assert entry.after.mean == pytest.approx(22 / 6)


def test_a_compiled_block_has_its_plain_name_and_the_same_draws(tiny_vit):
    plain, inside = tiny_vit(), tiny_vit()
    inside.blocks[0] = torch.compile(inside.blocks[0], backend="eager")
    reports = [initialize(model, Compose([KaimingUniform(), Mimetic()])) for model in (plain, inside)]
    assert reports[0].to_dict() == reports[1].to_dict()
    assert torch.equal(plain.blocks[0].attn.qkv.weight, inside.blocks[0].attn.qkv.weight)
    assert [site.name for site in attention_sites(inside)] == ["blocks.0.attn", "blocks.1.attn"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_plan_that_changes_the_model_itself_is_refused(tiny_vit, dry_run):
    class InPlace(Initializer):
        def plan(self, weights, *, rng, batch=None):
            weights.write(weights.model.cls_token, torch.zeros(1, 1, 16), "InPlace")
            torch.nn.init.normal_(weights.model.blocks[0].attn.qkv.weight, generator=rng.generator("qkv", "w"))

    with pytest.raises(StructuredInitError, match=r"^InPlace has changed 'blocks.0.attn.qkv.weight' itself, of which"):
        initialize(tiny_vit(), InPlace(), dry_run=dry_run)
