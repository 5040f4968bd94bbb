"""The report accounts for every parameter and hides nothing."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest
import torch
from hosts import Does
from torch import nn

from structured_init import (
    Compose,
    Default,
    KaimingUniform,
    Mimetic,
    Positions,
    Scrambled,
    SpatialFilters,
    WeightSelection,
    initialize,
)
from structured_init.util.files import made_by
from structured_init.weights import CHUNK, Statistics


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("count", [1, CHUNK, 2 * CHUNK + 3])
@pytest.mark.parametrize("mean", [0, 1e4])
def test_statistics_are_numpys_however_many_parts_are_measured_and_leave_the_tensor_alone(mean, count, dtype, close):
    value = mean + torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(0))
    copy = value.clone()
    found, wanted = Statistics.of(value), value.double().numpy()
    size = np.sqrt((wanted**2).mean())
    assert found.mean == pytest.approx(wanted.mean(), rel=close, abs=close * size)
    assert found.std == pytest.approx(wanted.std(), rel=close, abs=1e-12)
    assert found.rms == pytest.approx(size, rel=close)
    assert torch.equal(value, copy)


def test_numbers_whose_sums_and_squares_overflow_are_measured_too():
    value = torch.full((CHUNK + 1,), 1e38)
    value[0] = -3e38
    found, wanted = Statistics.of(value), value.double().numpy()
    assert (found.mean, found.std) == pytest.approx((wanted.mean(), wanted.std()), rel=1e-6)


def test_what_several_parts_measure_of_a_site_goes_from_before_the_first_to_after_the_last(tiny_vit):
    first = Does(lambda weights: weights.measure("head", {"size": (1.0, 2.0)}))
    second = Does(lambda weights: weights.measure("head", {"size": (2.0, 5.0)}))
    report = initialize(tiny_vit(), Compose([first, second]))
    assert report.measures == {"head": {"size": (1.0, 5.0)}}


def test_the_summary_counts_tensors_and_numbers(tiny_vit):
    model = tiny_vit()
    total = sum(parameter.numel() for parameter in model.parameters())
    report = initialize(model, Positions(trainable=False), seed=4)
    assert report.summary() == (
        f"Positions(trainable=False), seed 4: set 1 of {len(list(model.parameters()))} tensors "
        f"(272 of {total:,} numbers), 1 frozen; Positions: sincos in 1"
    )


def test_a_printed_report_begins_with_what_differs_from_the_defaults_and_the_file_has_every_argument(tiny_vit):
    report = initialize(
        tiny_vit(), Compose([KaimingUniform(), Scrambled(Mimetic(qk_alpha=0.1, where="blocks.1.attn"))])
    )
    called = "Scrambled(initializer=Mimetic(qk_alpha=0.1, where='blocks.1.attn'))"
    said = f"Compose(initializers=[KaimingUniform(), {called}]), seed 0: set "
    assert re.sub(r"\n {2,}", " ", str(report)).startswith(said)
    assert "qk_beta=0.7" in report.to_dict()["initializer"]
    assert repr(Compose([Mimetic()])) == f"Compose(initializers=[{Mimetic()!r}])"
    assert initialize(tiny_vit(), Mimetic()).summary().startswith("Mimetic(), seed 0: set ")


def test_the_report_survives_json(tiny_vit, tmp_path):
    report = initialize(tiny_vit(pos_embed="none", qk_norm=True), Mimetic(where=["*.attn"]))
    report.save(tmp_path / "deep" / "report.json")
    loaded = json.loads((tmp_path / "deep" / "report.json").read_text(encoding="utf-8"))
    assert loaded == {**report.to_dict(), "made_by": made_by()}
    assert loaded["entries"][0]["names"] == [report.entries[0].names[0]]
    assert set(loaded) == {
        "initializer", "seed", "entries", "skipped", "notes", "warnings", "trainable_parameters", "total_parameters",
        "measures", "attention", "unset_positions", "differs", "made_by",
    }  # fmt: skip


def test_what_the_host_cancels_of_the_parts_that_are_on_is_noted_per_layer(tiny_vit):
    report = initialize(tiny_vit(qk_norm=True, init_values=1e-5), Mimetic())
    assert set(report.notes) == {"blocks.0.attn", "blocks.1.attn"}
    for note in report.notes.values():
        assert "normalizes queries and keys" in note
        assert "LayerScale 1e-05 hides the branch" in note
    assert initialize(tiny_vit(init_values=0.1), Mimetic()).notes == {}  # which cancels nothing
    report = initialize(tiny_vit(qk_norm=True, init_values=1e-5), Mimetic(query_key=False))
    assert not any("normalizes" in note for note in report.notes.values())
    report = initialize(tiny_vit(qk_norm=True, init_values=1e-5), Mimetic(value_output=False))
    assert all("normalizes" in note and "LayerScale" in note for note in report.notes.values())  # it hides all


def test_trained_weights_are_warned_of(tiny_vit):
    model = tiny_vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(3):
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
        optimizer.step()
    (warning,) = initialize(model, Mimetic(), dry_run=True).warnings
    assert warning.startswith("the weights look trained ('blocks.0.norm1.weight'")
    assert initialize(model, Default()).warnings == []  # nothing was overwritten
    assert f"warning: {warning}" in " ".join(str(initialize(model, Mimetic())).split())
    fresh = tiny_vit()
    fresh.blocks[0], fresh.pos_embed = model.blocks[0], model.pos_embed  # as from a checkpoint of a part
    for where, positions, warned in (
        ("blocks.1", "keep", False),
        ("blocks.1", "sincos", True),
        ("blocks.0", "keep", True),
    ):
        report = initialize(fresh, Mimetic(where=where, positions=positions), dry_run=True)
        assert any("look trained" in each for each in report.warnings) == warned


def test_a_weight_that_is_not_finite_is_warned_of_whatever_is_set(tiny_vit):
    model = tiny_vit()
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[0, 0] = torch.nan
    (warning,) = initialize(model, Positions()).warnings
    assert warning.startswith("'blocks.1.mlp.fc1.weight' holds numbers that are not finite: it was not set")


def test_a_norm_that_the_start_itself_sets_is_no_training(tiny_vit):
    slope = Does(lambda weights: weights.write(weights.model.blocks[0].norm1.weight, torch.linspace(0, 1, 16), "me"))
    assert initialize(tiny_vit(), slope).warnings == []


def test_a_printed_report_has_one_line_per_run_of_blocks_and_names_what_the_host_built(tiny_vit):
    said = str(initialize(tiny_vit(depth=4), Mimetic(where=["blocks.[0-2].attn"])))
    assert max(map(len, said.splitlines())) <= 120
    lines = re.sub(r"\n {2,}", " ", said).splitlines()
    (blocks,) = (line for line in lines if line.startswith("blocks."))
    assert re.match(r"blocks\.0–2  attn\.qkv \[Mimetic: query_key, value_output\] std 0\.019–0\.02 → 0\.2\d*; ", blocks)
    assert "; attn.proj [Mimetic: value_output] std 0.0" in blocks
    assert blocks.endswith("; 10 more left as they were")
    assert any(line.startswith("pos_embed ") and "[Mimetic: positions]" in line for line in lines)
    assert "left as they were: cls_token, patch_embed.proj, blocks.3, norm, head" in lines


def test_blocks_that_were_treated_differently_have_lines_of_their_own(tiny_vit):
    parts = [KaimingUniform(), Mimetic(where="blocks.1.attn")]
    lines = str(initialize(tiny_vit(depth=3), Compose(parts))).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("blocks.")] == ["blocks.0", "blocks.1", "blocks.2"]
    assert any("attn.qkv [KaimingUniform + Mimetic: query_key, value_output]" in line for line in lines)


def test_frozen_is_what_is_not_trained_though_nobody_set_it_and_no_buffer():
    def build():
        return nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4))

    report = initialize(build(), SpatialFilters("host", frozen=True))
    assert ", 2 frozen" in report.summary()
    assert str(report).endswith("frozen: 0.weight, 0.bias")
    report = initialize(build(), WeightSelection(build()))
    assert {name for each in report.changed for name in each.names} >= {"1.running_mean", "1.running_var"}
    assert "frozen" not in str(report)


def test_equal_notes_on_several_layers_are_one_line(tiny_vit):
    report = initialize(tiny_vit(depth=3, qk_norm=True), Mimetic())
    said = str(report).splitlines()
    assert max(map(len, said)) <= 120
    (note,) = (line for line in said if line.startswith("note "))
    assert note.startswith("note blocks.0–2.attn: ")


def test_a_notebook_shows_the_same_lines_with_nothing_left_as_markup(tiny_vit):
    odd = Does(lambda weights: weights.write(weights.model.head.bias, torch.ones(5), "<b> & co"))
    report = initialize(tiny_vit(), odd)
    assert "head  bias [<b> & co] std 0 → 0 (mean 1); 1 more left as they were" in str(report)
    assert html.unescape(report._repr_html_()) == f"<pre>{report}</pre>"
    assert "<b>" not in report._repr_html_()


def test_the_summary_names_positions_that_were_left_and_parts_that_were_skipped(tiny_vit):
    kept = initialize(tiny_vit(), Mimetic(positions="keep"))
    assert kept.unset_positions == ["pos_embed"]
    assert kept.summary().endswith("; positions left as they were: pos_embed")
    assert initialize(tiny_vit(), Mimetic()).unset_positions == []
    assert initialize(tiny_vit(), KaimingUniform()).unset_positions == []  # it never asks for attention
    without = initialize(tiny_vit(pos_embed="none"), Mimetic())
    assert without.summary().endswith("; skipped positions (no table of positions was found)")


def test_memory_that_was_never_written_to_does_not_look_trained():
    with torch.device("meta"):
        model = nn.ModuleDict({"map": nn.Linear(4, 4), "norm": nn.LayerNorm(4), "last": nn.LayerNorm(4)})
    model.to_empty(device="cpu")
    model["norm"].weight.data = torch.arange(4, dtype=torch.int32).view(torch.float32)
    model["last"].weight.data = torch.tensor([0.0, float("nan"), 1.0, 1.0])
    (warning,) = initialize(model, KaimingUniform()).warnings
    said = "3 of 4 numbers are below 1e-38"
    assert warning == f"'norm.weight', and 1 more was never initialized, as after to_empty: {said}"
