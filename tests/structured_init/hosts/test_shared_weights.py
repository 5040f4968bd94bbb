"""Shared weights and numbers computed from weights: the report says what one write means for the others."""

from __future__ import annotations

import copy

import peft
import pytest
import timm
import torch
import transformers
from hosts import of_transformers
from strangers import WIDTH, Apart
from timm.layers import Attention
from torch import nn

from structured_init import (
    Compose,
    Default,
    KaimingUniform,
    Mimetic,
    Positions,
    PreviousToken,
    Scrambled,
    initialize,
)
from structured_init.analysis import audit


def test_projections_shared_by_two_layers_are_noted():
    layers = nn.ModuleList([Attention(8, num_heads=2), Attention(8, num_heads=2)])
    layers[1].qkv.weight = layers[0].qkv.weight
    report = initialize(layers, Mimetic(positions="keep"))
    assert report.notes["0.qkv.weight"] == "shared with 1.qkv.weight: one tensor, so what is set holds for all"
    assert "0.proj.weight" not in report.notes
    assert "note 0.qkv.weight: shared with 1.qkv.weight" in report.table()


class Shared(nn.Module):
    """One block that stands three times in its list, and a head that is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(11, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)] * 3)
        self.head = nn.Linear(32, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        hidden = self.embed(ids) + self.pos_embed(torch.arange(ids.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


@pytest.mark.parametrize(
    "look", [audit, lambda model, ids: initialize(model, PreviousToken(context=16), batch=ids, dry_run=True)]
)
def test_a_module_that_is_registered_several_times_keeps_its_own_parameters(look):
    model, ids = Shared(), torch.arange(32).view(2, 16) % 11
    before = [(name, each, each.detach().clone()) for name, each in model.named_parameters()]
    look(model, ids)
    now = dict(model.named_parameters())
    assert [*now] == [name for name, *_ in before]
    assert all(now[name] is each and each.equal(value) for name, each, value in before)


def test_gradients_of_a_tied_head_and_of_a_block_that_runs_three_times_are_those_of_autograd():
    model, ids = Shared().eval(), torch.arange(32).view(2, 16) % 11
    found = audit(model, ids, seed=3).gradients
    output = model(ids)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    ((output * direction).sum() / output.numel() ** 0.5).backward()
    assert found == pytest.approx({n: p.grad.square().mean().sqrt().item() for n, p in model.named_parameters()}, 1e-4)


def test_an_embedding_tied_to_the_head_is_noted_only_where_it_is_set():
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=8)
    assert "shared with" not in str(initialize(transformers.GPT2LMHeadModel(config), Mimetic(positions="keep")).notes)
    report = initialize(transformers.GPT2LMHeadModel(config), KaimingUniform())
    assert report.notes["transformer.wte.weight"].startswith("shared with lm_head.weight")


def test_layers_that_albert_runs_several_times_are_noted():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "embedding_size": 4, "vocab_size": 11}
    model = of_transformers("AlbertModel", **sizes, num_hidden_layers=6, num_hidden_groups=1)
    assert initialize(model, Default()).notes == {}
    note = "its 6 layers share 1 set(s) of weights: one initialization for all that share"
    assert initialize(model, KaimingUniform()).notes == {"encoder": note}
    model = of_transformers("AlbertModel", **sizes, num_hidden_layers=2, num_hidden_groups=2)
    assert initialize(model, KaimingUniform()).notes == {}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, None),
        ({"init_lora_weights": "olora"}, "lora_B' is not zero, so its adapter adds to the weight"),
        ({"use_dora": True}, "lora_magnitude_vector' was computed from the weight"),
    ],
)
def test_an_adapter_around_a_weight_that_was_overwritten_is_warned_of(options, found):
    model = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=2)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["qkv"], **options))
    assert not any("lora" in warning for warning in initialize(adapted, Default()).warnings)
    warnings = [warning for warning in initialize(adapted, Mimetic()).warnings if "lora" in warning]
    assert len(warnings) == (found is not None)
    assert all(warning.startswith(f"'blocks.0.attn.qkv.{found} that was overwritten") for warning in warnings)


class Distilled(nn.Module):
    """A student and the teacher that follows it, as in DINO, BYOL and data2vec."""

    def __init__(self):
        super().__init__()
        self.student = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=0)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, images):
        return self.student(images), self.teacher(images)


def test_a_teacher_that_no_longer_equals_its_student_is_warned_of():
    said = "'teacher' was a frozen copy of 'student' and no longer is: initialize 'student' alone, then copy it"
    assert initialize(Distilled(), Mimetic(positions="keep")).warnings == [said]
    assert initialize(Distilled(), Positions("sincos")).warnings == []  # both get the same values
    assert initialize(Distilled(), Mimetic(where="student")).warnings == []  # the user says so
    assert not any("copied" in each.text for each in audit(Distilled()).findings)


class WithTarget(nn.Module):
    """A target network of a class that nobody described; a forward pass runs its original alone."""

    def __init__(self):
        super().__init__()
        self.online = Apart()
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, tokens):
        return self.online(tokens)


def test_a_copy_that_did_not_run_while_attention_was_sought_is_warned_of():
    tokens, said = torch.randn(2, 5, WIDTH), "'target' was a frozen copy of 'online' and no longer is: initialize"
    [warning] = initialize(WithTarget(), Mimetic(positions="keep"), batch=tokens).warnings
    assert warning.startswith(said)
    chosen = Mimetic(positions="keep", where="online")
    for each in (chosen, Compose([chosen]), Scrambled(chosen)):
        assert initialize(WithTarget(), each, batch=tokens).warnings == []
    another = WithTarget()
    another.target = Apart().requires_grad_(False)  # no copy
    assert initialize(another, Mimetic(positions="keep"), batch=tokens).warnings == []


def test_positions_of_another_tower_are_left_alone_under_where():
    report = initialize(Distilled(), Mimetic(where="student"))
    assert [each.names[0] for each in report.changed if "pos_embed" in each.names[0]] == ["student.pos_embed"]
    assert report.skipped["teacher.pos_embed"] == "not the positions of what where='student' selects"


def test_a_teacher_inside_of_its_student_and_layers_that_are_copies_are_paired_rightly():
    student = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    student.teacher = copy.deepcopy(student).requires_grad_(False)
    said = "'teacher' was a frozen copy of the model and no longer is: initialize the model alone, then copy it"
    assert [each for each in initialize(student, KaimingUniform()).warnings if "frozen copy" in each] == [said]
