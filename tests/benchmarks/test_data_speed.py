"""benchmarks/data_speed.py: both pipelines deliver the same images where nothing is random."""

from __future__ import annotations

import json
import time

import numpy as np
import torch

from benchmarks import data_speed


def test_without_random_changes_both_deliver_the_same_images():
    pixels = data_speed.images(4, 16)
    mine, labels = next(iter(data_speed.ours(pixels, {})))
    theirs, their_labels = next(iter(data_speed.timm(pixels, {}, crop=False)))
    order, their_order = labels.argsort(), their_labels.argsort()  # labels are the images' numbers
    torch.testing.assert_close(mine[order], theirs[their_order], atol=1e-5, rtol=1e-5)


def test_the_recipe_is_drawn_anew_for_every_image():
    pixels = np.repeat(data_speed.images(1, 16), 8, axis=0)
    for loader in (data_speed.ours, lambda *a: data_speed.timm(*a, crop=True)):
        images, _ = next(iter(loader(pixels, data_speed.RECIPES["flip, RandAugment"])))
        assert len({tuple(each.flatten().tolist()) for each in images}) > 3


def test_the_results_are_written(tmp_path, monkeypatch, capsys):
    arguments = ["--images", "8", "--size", "16", "--rounds", "2", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["data_speed", *arguments])
    data_speed.main()
    record = json.loads((tmp_path / "data_speed.json").read_text(encoding="utf-8"))
    rows = record["rows"]
    assert [row["recipe"] for row in rows] == list(data_speed.RECIPES)
    assert all(len(rates) == 2 for row in rows for rates in row["images_per_second"].values())
    assert [each["workers"] for each in record["workers"]] == [1, 2]
    assert (tmp_path / "data_speed.md").read_text(encoding="utf-8").strip() in capsys.readouterr().out


def test_seconds_of_workers_are_apart_from_those_of_this_process(monkeypatch):
    """A slow augmentation costs the workers as much as it takes, and this process next to nothing."""
    pixels, load = data_speed.images(8, 16), data_speed.ImageSet.__getitems__

    def slow(self, *arguments):
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass
        return load(self, *arguments)

    monkeypatch.setattr(data_speed.ImageSet, "__getitems__", slow)
    found = data_speed.handed_on(pixels, 1, 2)
    assert 0.4 < found["there"] < 0.8
    assert 0 < found["here"] < 0.2
