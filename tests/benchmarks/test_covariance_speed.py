"""The benchmark of covariance starts: both sides draw from one law, and it writes what it measured."""

from __future__ import annotations

import json
import sys

import timm
import torch

from benchmarks import covariance_speed
from structured_init import depthwise_conv_sites
from structured_init.conv.covariance import initializer


def small():
    torch.manual_seed(0)
    return timm.models.convmixer.ConvMixer(600, 3, kernel_size=5, patch_size=4, num_classes=2)


def test_both_sides_draw_from_one_law():
    distances = covariance_speed.distances(small())
    assert len(distances) == 4
    assert max(distances.values()) < 0.2  # 600 filters of 25 weights, few of them independent


def test_numpys_side_starts_every_layer():
    model = small()
    before = [site.filters for site in depthwise_conv_sites(model)]
    covariance_speed.numpy_start(model, "svd")
    after = [site.filters for site in depthwise_conv_sites(model)]
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_the_steps_are_timed_inside_the_whole_and_put_back():
    published = initializer.symmetric_root
    times = covariance_speed.taken_apart(small())
    assert initializer.symmetric_root is published
    assert set(times) == {"whole", "covariance", "projection", "sampling"}
    assert all(seconds > 0 for seconds in times.values())
    assert sum(times.values()) < 2 * times["whole"]


def test_the_command_writes_numbers_and_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(covariance_speed.timm, "create_model", lambda name: small())
    monkeypatch.setattr(sys, "argv", ["covariance_speed", "--repeats", "2", "--output", str(tmp_path)])
    covariance_speed.main()
    record = json.loads((tmp_path / "covariance_speed.json").read_text())
    assert [len(times) for times in record["times"].values()] == [2] * 4
    table = (tmp_path / "covariance_speed.md").read_text()
    assert table.strip() in capsys.readouterr().out
    shares = [line.split("|")[3].strip() for line in table.splitlines() if line.startswith("| sampling")]
    assert len(shares) == 1
    assert 0 < float(shares[0].rstrip("%")) < 100


def test_a_ratio_is_of_medians_and_above_one_where_it_is_faster():
    times = {"numpy, method='svd'": [2.0, 8.0, 4.0], "ours": [1.0, 2.0, 9.0]}
    assert [row.split("|")[5].strip() for row in covariance_speed.rows(times)[2:]] == ["1.00×", "2.00×"]
