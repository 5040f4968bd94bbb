from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from timm.optim import Muon
from torch import nn

from lightning_modules import ImageClassifier, LanguageModel, TextClassifier
from lightning_modules.tasks.optim import (
    build_optimizer,
    learning_rate,
    parameter_groups,
    piecewise_linear,
)
from structured_init import StructuredInitError

SCHEDULE = {"total_steps": 100, "warmup_steps": 10, "warmup_lr": 1e-5, "min_lr": 1e-6}


class Tagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = nn.Parameter(torch.ones(2, 2))
        self.tagged = nn.Parameter(torch.ones(2, 2))
        self.tagged._no_weight_decay = True
        self.declared = nn.Parameter(torch.ones(2, 2))
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
        self.norm = nn.LayerNorm(2)

    def no_weight_decay(self):
        return {"declared"}


def undecayed(module):
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        names[id(p)] for group in parameter_groups(module) if group.get("weight_decay") == 0 for p in group["params"]
    }


def test_tagged_declared_and_vector_parameters_do_not_decay_and_frozen_ones_are_left_out():
    model = nn.ModuleDict({"inner": Tagged()})
    assert undecayed(model) == {"inner.tagged", "inner.declared", "inner.norm.weight", "inner.norm.bias"}
    assert sum(len(group["params"]) for group in parameter_groups(model)) == 5


def test_in_a_vision_transformer_only_matrices_and_the_patch_embedding_decay():
    tokens = {"class_token": True, "register_tokens": 2, "depth": 1}
    network = ImageClassifier("vit_nano_patch2_8", tokens, image_size=8, in_channels=1).network
    rest = {name for name, _ in network.named_parameters()} - undecayed(network)
    matrices = {f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert rest == {"patch_embed.proj.weight", "head.weight"} | matrices


def test_gains_and_scales_do_not_decay_whatever_their_shape_and_weights_of_layers_do():
    weight_norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(nn.Linear(1, 4), nn.Conv2d(4, 1, 1), weight_norm(nn.Linear(4, 4)), nn.Linear(4, 1))
    model.scale, model.table = nn.Parameter(torch.ones(4, 1, 1)), nn.Parameter(torch.ones(1, 3, 4))
    biases = {f"{layer}.bias" for layer in range(4)}
    assert undecayed(model) == biases | {"scale", "2.parametrizations.weight.original0"}


def test_a_head_of_computed_weight_goes_to_the_fallback():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    (hidden,) = (g["params"] for g in parameter_groups(model, fallback=True) if not g.get("use_fallback"))
    assert [id(each) for each in hidden] == [id(model[0].weight)]


def test_the_learning_rate_rises_in_a_line_and_falls_in_half_a_cosine():
    rates = [learning_rate(step, base_lr=1e-3, **SCHEDULE) for step in range(120)]
    assert rates[0] == pytest.approx(1e-5)
    assert rates[5] == pytest.approx((1e-5 + 1e-3) / 2)
    assert rates[10] == pytest.approx(1e-3)
    assert rates[10 + 30] == pytest.approx(1e-6 + (1e-3 - 1e-6) * math.cos(math.pi / 6) ** 2)  # (1 + cos 2x)/2 = cos² x
    assert rates[55] == pytest.approx((1e-3 + 1e-6) / 2)
    assert rates[100] == rates[119] == pytest.approx(1e-6)


def test_the_published_curve_of_the_convmixers_is_followed_in_every_step():
    """locuslab/convmixer-cifar10: np.interp of the fractional epoch at the end of the step."""
    epochs, steps_per_epoch, peak = 25, 7, 0.05
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=peak)
    points = [[0, 0], [0.4, 1], [0.8, 0.05], [1, 0]]
    scheduler = piecewise_linear(optimizer, total_steps=epochs * steps_per_epoch, points=points)
    for epoch in range(epochs):
        for i in range(steps_per_epoch):
            knots = [0, epochs * 2 // 5, epochs * 4 // 5, epochs]
            expected = np.interp(epoch + (i + 1) / steps_per_epoch, knots, [0, peak, peak / 20, 0])
            assert scheduler.get_last_lr()[0] == pytest.approx(expected, abs=1e-12)
            optimizer.step()
            scheduler.step()


def test_a_recipe_can_let_every_parameter_decay():
    model = nn.ModuleDict({"inner": Tagged()})
    (group,) = parameter_groups(model, decay_all=True)
    assert "weight_decay" not in group
    assert len(group["params"]) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr_schedule": [[0, 0], [0.5, 1]]}, r"first numbers rise from 0 to 1"),
        ({"lr_schedule": [[0, 0], [1, 0]], "warmup_epochs": 2}, "warmup_epochs=2 would do nothing"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused_at_once(arguments, message):
    with pytest.raises(StructuredInitError, match=message):
        ImageClassifier("vit_nano_patch2_8", {"depth": 1}, image_size=8, **arguments)


TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("build", "hidden"),
    [
        (
            lambda: ImageClassifier(
                "vit_nano_patch2_8", {"class_token": True, "register_tokens": 2, "depth": 1}, image_size=8
            ),
            r"patch_embed\.proj\.weight|blocks\.0\.(attn\.(qkv|proj)|mlp\.fc[12])\.weight",
        ),
        (
            lambda: ImageClassifier("convmixer_64_4_k9_p4", image_size=32),
            r"stem\.0\.weight|blocks\.\d\.(0\.fn\.0|1)\.weight",  # timm itself gives depthwise filters to AdamW
        ),
        (
            lambda: LanguageModel("llama", {**TINY, "intermediate_size": 24, "tie_word_embeddings": False}),
            r"model\.layers\.0\.(self_attn|mlp)\.\w+_proj\.weight",
        ),
        (
            lambda: LanguageModel("mamba2", {"hidden_size": 16, "num_hidden_layers": 1, "head_dim": 8, "num_heads": 4}),
            r"backbone\.layers\.0\.mixer\.(in|out)_proj\.weight",
        ),
        (
            lambda: TextClassifier("bert", {**TINY, "intermediate_size": 24}),
            r"backbone\.encoder\.layer\.0\..*(query|key|value|dense)\.weight",
        ),
    ],
    ids=["vit", "convmixer", "llama", "mamba2", "bert"],
)
def test_muon_gets_hidden_matrices_and_its_fallback_all_else(build, hidden):
    """What the field does: embeddings, heads, norms, positions, tokens and state-space parameters go to AdamW."""
    task = build()
    names = {id(parameter): name for name, parameter in task.network.named_parameters()}
    for decay_all in (False, True):
        optimizer = build_optimizer(Muon, task, decay_all=decay_all)
        fallback = {names[id(p)] for g in optimizer.param_groups if g.get("use_fallback") for p in g["params"]}
        muon = {names[id(p)] for g in optimizer.param_groups if not g.get("use_fallback") for p in g["params"]}
        assert fallback | muon == set(names.values())
        assert not fallback & muon
        assert muon == {name for name in names.values() if re.fullmatch(hidden, name)}


def test_tables_that_a_model_holds_are_no_hidden_matrices_and_weights_that_a_layer_holds_are():
    model = nn.Module()
    model.slot, model.attention = nn.Parameter(torch.randn(6, 64)), nn.MultiheadAttention(64, 2)
    model.blocks, model.head = nn.ModuleList([nn.Module()]), nn.Linear(64, 9)
    model.blocks[0].experts, model.blocks[0].router = nn.Parameter(torch.randn(4, 64, 64)), nn.Linear(64, 4)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    muon = [
        names[id(p)] for g in parameter_groups(model, fallback=True) if "use_fallback" not in g for p in g["params"]
    ]
    weights = ["attention.in_proj_weight", "attention.out_proj.weight", "blocks.0.experts", "blocks.0.router.weight"]
    assert sorted(muon) == weights


def test_a_step_of_muon_moves_matrices_by_turned_gradients_and_the_rest_as_adamw_does():
    """One learning rate for both: it bounds the singular values of a step of Muon, the entries of a step of AdamW."""
    torch.manual_seed(0)
    task = ImageClassifier("vit_nano_patch2_8", {"depth": 1}, image_size=8)
    before = {name: tensor.detach().clone() for name, tensor in task.network.named_parameters()}
    optimizer = build_optimizer(lambda groups: Muon(groups, lr=1e-3, weight_decay=0.0, eps=1e-12), task)
    nn.functional.cross_entropy(task.network(torch.randn(32, 3, 8, 8)), torch.arange(32) % 10).backward()
    optimizer.step()
    moved = {name: (tensor.detach() - before[name]) for name, tensor in task.network.named_parameters()}
    for name in ("head.weight", "head.bias", "pos_embed"):
        np.testing.assert_allclose(moved[name].abs(), 1e-3, rtol=1e-3)  # the first step of Adam is that of signs
    for name in ("blocks.0.attn.proj.weight", "blocks.0.mlp.fc1.weight", "patch_embed.proj.weight"):
        step = moved[name].flatten(1)
        unit = 1e-3 * 0.2 * max(step.shape) ** 0.5  # 2502.16982, so that entries are as large as AdamW's: 0.2 of lr
        assert torch.linalg.svdvals(step).max().item() / unit == pytest.approx(1, abs=0.3), name  # AdamW: 5 or more
