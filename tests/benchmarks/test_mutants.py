"""Bugs are put into models, what is told of them is counted, and a healthy model is left alone."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from benchmarks import mutant_models, mutants
from benchmarks.mutant_list import MUTANTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutants")
    few = {name: mutant_models.written_here()[name] for name in ("gpt", "mlp")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "mutant_models", lambda: {f"own/{name}": build for name, build in few.items()})
        patch.setattr(mutants, "healthy_models", lambda: {"own/mlp": few["mlp"], "own/none": lambda: 1 / 0})
        for kind in ("a matrix is empty", "the own method forgets positions"):
            assert mutants.main(["--output", str(folder), "--resume", "--only", kind]) == 0
        assert mutants.main(["--output", str(folder), "--resume", "--part", "healthy"]) == 0
    return folder


def test_a_bug_is_caught_and_its_parameter_named(folder):
    rows = json.loads((folder / "mutants.json").read_text())["mutants"]
    row = rows["the own method forgets positions | own/gpt"]
    assert row["names"] == ["pos_embed"]
    assert mutants.default(row)
    assert row["named"]
    assert row["false"] == []
    assert "blocks.2" in rows["a matrix is empty | own/gpt"]["names"][0]


def test_healthy_models_pass_and_one_that_cannot_be_built_is_said(folder):
    text = (folder / "mutants.md").read_text()
    assert "2 kinds of bug were put into 2 small models, 3 runs" in text
    assert "1 models of 1 libraries were checked; 0 fail" in text
    assert "own/none: ZeroDivisionError" in text


def test_a_line_names_a_parameter_of_another_block_but_no_other_parameter():
    line = "copies: blocks.3.attn.qkv.weight: equal to another"
    assert mutants.says(line, ["blocks.1.attn.qkv.weight"])
    assert not mutants.says(line, ["qkv.weight", "blocks.1.attn.qkv.bias"])


def test_a_bug_is_made_again_by_the_own_method():
    mutant = next(each for each in MUTANTS if each.name == "norms begin at two")
    model = mutants.buggy(lambda: mutant_models.Transformer("gpt"), mutant)
    model.init_weights()
    assert torch.equal(model.norm.weight, torch.full((32,), 2.0))


@pytest.mark.parametrize("name", ["a gradient is cut off", "two parameters overlap", "one block is used for all"])
def test_a_mutant_does_what_its_name_says(name):
    mutant = next(each for each in MUTANTS if each.name == name)
    model = mutant_models.Transformer("gpt")
    names = list(mutant.change(model))
    first, second = (model.get_parameter(f"blocks.{number}.mlp.fc1.weight") for number in (0, 1))
    model(mutant_models.words()).sum().backward()
    if name == "a gradient is cut off":
        assert names == ["blocks.2.mlp.fc1.weight"]
        assert model.get_parameter(names[0]).grad is None
    elif name == "two parameters overlap":
        assert torch.equal(first[64:], second[:64])
    else:
        assert first is second


def test_kinds_have_names_of_their_own():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 90


def test_a_model_without_the_part_is_left_alone():
    mutant = next(each for each in MUTANTS if each.name == "experts are equal")
    assert list(mutant.change(nn.Linear(2, 2))) == []
