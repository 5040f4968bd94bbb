"""The benchmark of finding counts what is found and sets it beside a forward pass of the same batch."""

from argparse import Namespace

import timm
import torch

from benchmarks import finding_speed


def tiny():
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).eval(), torch.randn(2, 3, 32, 32)


def test_both_sides_run_on_one_batch_and_every_layer_is_found():
    found = finding_speed.beside(tiny, Namespace(repeats=2))
    assert found["layers"] == 2
    assert len(found["forward"]) == len(found["finding"]) == 2
    assert min(found["finding"]) > 0


def test_a_row_has_the_median_of_neighbouring_ratios():
    found = {"layers": 12, "forward": [1.0, 2.0, 4.0], "finding": [3.0, 4.0, 4.0]}
    assert finding_speed.row("ViT-B", found) == "| ViT-B | 12 | 2 | 4 | 3 | 2.00 | 1.00 – 3.00 |"
    page = finding_speed.table({"surroundings": {"threads": 1}, "ViT-B": found})
    assert "| ViT-B | 12 | 2 | 4 |" in page
    assert "Swin-T" not in page
