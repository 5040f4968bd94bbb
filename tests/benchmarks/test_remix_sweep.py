"""The accuracy of a trained network whose values are remixed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import yaml

from benchmarks import remix_sweep
from benchmarks.remix_sweep import ALPHAS, deformable, first_images
from lightning_modules.data.image_data import ImageData
from lightning_modules.networks import create_network

EXPERIMENT = {
    "model": {"init_args": {"network": "cct_2_3x2_8"}},
    "data": {"init_args": {"name": "digits", "eval_batch_size": 50}},
}


def checkpoint(path: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    network = create_network("cct_2_3x2_8", num_classes=10, image_size=8, in_channels=1)
    for parameter in network.parameters():
        parameter.data.normal_(std=1.0)  # far enough from zero for attention to matter
    torch.save(network.state_dict(), path)
    return path


def test_every_alpha_is_measured_and_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    monkeypatch.setattr(remix_sweep, "shipped_configs", lambda: {"experiment/small": tmp_path / "small.yaml"})
    files = [str(checkpoint(tmp_path / f"{seed}.pt", seed)) for seed in range(2)]
    arguments = ["small", "--checkpoints", *files, "--images", "90", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["remix_sweep", *arguments])
    remix_sweep.main()
    record = json.loads((tmp_path / "out" / "remix_sweep.json").read_text())
    assert record["accuracies"].keys() == {"1", "64"}
    assert all(len(run) == len(ALPHAS) for runs in record["accuracies"].values() for run in runs)
    once, larger = record["accuracies"]["1"], record["accuracies"]["64"]
    assert [run[0] for run in once] == [run[0] for run in larger]
    assert once != larger
    text = (tmp_path / "out" / "remix_sweep.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| 1 |")]
    assert row.split(" | ")[2].startswith(f"{50 * sum(run[-1] for run in larger):.1f} ±")
    assert "Percent of 90 test images" in capsys.readouterr().out


def test_without_alpha_it_is_the_trained_network_and_then_it_changes(tmp_path):
    data = ImageData(**EXPERIMENT["data"]["init_args"])
    images, labels = first_images(data, 90)
    assert images.shape == (90, 1, 8, 8)
    path = checkpoint(tmp_path / "weights.pt", 0)
    network = deformable(EXPERIMENT, data, path, 1.0)
    plain = create_network("cct_2_3x2_8", num_classes=10, image_size=8, in_channels=1, weights=str(path)).eval()
    classes = plain(images).argmax(-1)
    accuracies = remix_sweep.sweep(network, images, classes)  # how often it agrees with the trained network
    assert accuracies[0] == 1
    assert accuracies[-1] < 1
    assert remix_sweep.sweep(network, images, labels)[0] == int((classes == labels).sum()) / 90
