"""The benchmark of scale: networks of the published sizes, laws that are recovered, traffic that adds up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
import warm_process
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import init_scale, init_scale_tables
from benchmarks.collectives import sharded_bytes
from benchmarks.init_shapes import INITIALIZATIONS, NETWORKS, gpt2, llama, replica
from structured_init import initialize


def numbers(build):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


@pytest.mark.parametrize(("name", "published"), [("7B", 6_738_415_616), ("70B", 70_553_706_496)])
def test_a_llama_has_as_many_parameters_as_the_published_one(name, published):
    """Llama-2-7B and Llama-3-70B."""
    width, heads, keys, mlp, layers, vocab = init_scale.LLAMAS[name]
    one, two = (numbers(partial(llama, width, heads, keys, mlp, depth, vocab)) for depth in (1, 2))
    assert one + (layers - 1) * (two - one) == published


@pytest.mark.parametrize(("name", "published", "width"), [("small", 124_439_808, 768), ("XL", 1_557_611_200, 1600)])
def test_gpt_2_has_as_many_parameters_as_the_published_one(name, published, width):
    network = NETWORKS[f"GPT-2 {name}"]
    one, two = (numbers(partial(network.build, depth)) for depth in (1, 2))
    left_out = (50257 - 8 + 1024 - 16) * width  # vocabulary and positions
    assert one + (network.layers - 1) * (two - one) + left_out == published


def test_the_replica_of_the_full_width_is_a_layer_of_the_largest_llama():
    width, heads, keys, mlp, *_ = init_scale.LLAMAS["70B"]
    with torch.device("meta"):
        shapes = [
            {name: tuple(p.shape) for name, p in model.named_parameters()}
            for model in (replica(width), llama(width, heads, keys, mlp))
        ]
    assert shapes[0] == shapes[1]


@given(st.floats(1e-12, 1e-6), st.floats(0.5, 4.5))
def test_a_power_law_is_recovered_and_continued(factor, exponent):
    points = {width: factor * width**exponent for width in (1024, 2048, 4096)}
    assert init_scale_tables.power_law(points) == pytest.approx((factor, exponent), rel=1e-6)
    assert init_scale_tables.predicted(points, 8192) == pytest.approx(factor * 8192**exponent, rel=1e-6)


def test_a_layer_is_its_groups_and_its_values():
    row = {"group": {"seconds": [1.0, 2.0, 9.0]}, "values": {"seconds": [5.0]}}
    assert init_scale_tables.layer_seconds(row, 8) == 21.0
    assert init_scale_tables.counted_up(2.0, 6.0, 12) == 24.0


def test_what_an_initialization_sets_in_the_largest_llama():
    attention, outside = init_scale_tables.set_shapes(
        {f"model.layers.0.self_attn.{kind}_proj.weight" for kind in "qkvo"}, list(init_scale.LLAMAS["70B"])
    )
    assert not outside
    assert sum(rows * columns for rows, columns in attention) == 2 * 8192**2 + 2 * 8192 * 1024


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=5), st.integers(2, 9))
def test_every_byte_that_one_rank_sends_another_receives(shapes, ranks):
    moved = [sharded_bytes(shapes, 2, ranks, rank) for rank in range(ranks)]
    assert sum(received for received, _ in moved) == sum(sent for _, sent in moved)


def test_where_shards_are_equal_a_rank_receives_as_much_as_is_set():
    assert sharded_bytes([(64, 10), (8, 3)], 2, 8, 1)[0] == 2 * (640 + 24)


def test_a_simulated_group_counts_what_the_formula_says():
    found = init_scale._counted(INITIALIZATIONS["conditioned"], 1, 4)
    for way in ("received", "sent"):
        assert 1 <= found[way] / found["formula"][way] < 1.02  # the rest: the look at norms for the report
    assert found["calls"]["scatter_"] == 3


def test_times_and_memory_are_of_the_one_initialization():
    with warm_process.pool() as pool:  # this one has memory to use again
        found = pool.apply(init_scale.timed, (partial(gpt2, 512, 8, 1), INITIALIZATIONS["mimetic, float32"], 2, 60.0))
    assert len(found["seconds"]) == 2
    assert min(found["seconds"]) > 0
    assert set(found["set"]) == {f"transformer.h.0.attn.{name}.weight" for name in ("c_attn", "c_proj")}
    assert found["peak"] > 4 * 512 * 512  # at least the matrix that is decomposed
    assert len(init_scale.timed(partial(gpt2, 64, 2, 1), INITIALIZATIONS["conditioned"], 3, 0.0)["seconds"]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets glibc's malloc")
def test_an_initialization_holds_about_one_layer_beyond_the_model_whatever_its_depth():
    """Two layers and six of ViT-S, in units of one layer; keeping what was overwritten would add a layer for three."""
    names, network = ("separable", "kaiming_uniform", "mimetic, float32"), NETWORKS["ViT-S/16"]
    calls = [(partial(network.build, depth), INITIALIZATIONS[name]) for name in names for depth in (2, 6)]
    with warm_process.pool() as pool:
        found = pool.starmap(init_scale.held, calls)
    layer = 4 * (numbers(partial(network.build, 2)) - numbers(partial(network.build, 1)))
    for name, two, six in zip(names, found[::2], found[1::2], strict=True):
        assert 0.2 * layer < two < 1.2 * layer, name
        assert abs(six - two) < 0.2 * layer, name


def test_every_initialization_of_a_network_has_a_place_in_it():
    network = NETWORKS["ViT-T/16"]
    for name in network.initializations:
        assert initialize(network.build(1), INITIALIZATIONS[name], dry_run=True).changed, name


def test_the_command_writes_numbers_and_tables(tmp_path, monkeypatch, capsys):
    few = replace(NETWORKS["ViT-T/16"], initializations=("separable", "mimetic, float32"))
    monkeypatch.setattr(init_scale, "NETWORKS", {**NETWORKS, "ViT-T/16": few})
    monkeypatch.setattr(init_scale, "LLAMAS", {"70B": (1024, 8, 1, 3584, 80, 32000)})
    monkeypatch.setattr(init_scale, "CURVES", {"conditioned": (1024,), "mimetic, float32": (1024,)})
    monkeypatch.setattr(init_scale, "RANKS", (2,))
    monkeypatch.setattr(init_scale, "forked", lambda function, *args: function(*args))  # pytest has threads
    arguments = ["--repeats", "1", "--budget", "0", "--only", "ViT-T", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["init_scale", *arguments])
    init_scale.main()
    record = json.loads((tmp_path / "init_scale.json").read_text())
    assert set(record) == {"settings", "surroundings", *init_scale.MEASURES}
    assert set(record["networks"]) == {"ViT-T/16"}
    assert set(record["llamas"]["70B"]["initializations"]) == set(init_scale.CURVES)
    table = (tmp_path / "init_scale.md").read_text()
    assert table.strip() in capsys.readouterr().out
    ratio = next(line for line in table.splitlines() if line.startswith("| mimetic, float32 | 1024 |")).split("|")[6]
    assert 0.5 < float(ratio) < 2  # a layer counted up from its parts, against the layer
