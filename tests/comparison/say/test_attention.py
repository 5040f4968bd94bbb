"""Attention before and after training: the pictures that the runs drew, and numbers of what they wrote."""

import json
import math

import pytest
from compared import report_text
from safetensors.torch import load_file

from comparison.say.data import read_report_data
from comparison.say.panels.attention import attention, numbers_table
from comparison.say.theme import Drawing
from structured_init.analysis import cka_matrix

PNG = b"\x89PNG\r\n\x1a\n of the run"


def drawn(folder, arm, seed):
    (folder / "runs" / arm / f"seed_{seed}" / "attention" / "maps.png").write_bytes(PNG)


def test_the_picture_of_one_run_per_arm_is_the_one_that_the_run_drew(comparison, tmp_path):
    folder = comparison({"default": {0: 0.8, 1: 0.7}, "mine": {0: 0.7, 1: 0.7}})
    for arm, seed in (("default", 0), ("mine", 0), ("mine", 1)):
        drawn(folder, arm, seed)
    pictures = [piece for piece in attention(read_report_data(folder, baseline="mine")) if isinstance(piece, Drawing)]
    assert [picture.name for picture in pictures] == ["attention_mine", "attention_default"]  # the baseline first
    (written,) = pictures[0].write(tmp_path)
    assert written.read_bytes() == PNG


def test_numbers_are_means_over_heads_layers_and_seeds_before_and_after(comparison):
    folder = comparison({"default": {0: 0.8, 1: 0.7}})
    for seed, entropies in ((0, [[0.0, 0.5], [0.1, None]]), (1, [[1.0, 0.0], [0.4, 0.2]])):
        layers = {f"h.{layer}": {"normalised_entropy": of} for layer, of in enumerate(entropies)}
        file = folder / "runs" / "default" / f"seed_{seed}" / "attention" / "statistics.json"
        file.write_text(json.dumps({"before": layers, "after": {"h.0": {"normalised_entropy": [math.nan]}}}))
    cells = numbers_table(read_report_data(folder)).loc["default"]
    assert cells["entropy"] == "0.30 → –"  # of 0.2 and 0.4; null and NaN are no numbers
    assert "W_v W_o" not in cells  # no run has written any
    similar = []
    for seed in (0, 1):
        kept = folder / "runs" / "default" / f"seed_{seed}" / "representations"
        before, after = (load_file(kept / f"{moment}.safetensors") for moment in ("before", "after"))
        similar += cka_matrix(before, after).diagonal().tolist()
    assert float(cells["CKA after with before"].replace("−", "-")) == pytest.approx(sum(similar) / 4, abs=0.005)


def test_runs_without_attention_have_no_such_section_and_a_damaged_file_is_a_line(comparison):
    folder = comparison({"default": {0: 0.8}, "older": {0: 0.7}}, pieces=())
    assert "## Attention" not in report_text(folder, "attention")
    products = folder / "runs" / "default" / "seed_0" / "weight_products"
    products.mkdir()
    (products / "summary.json").write_text("{")
    assert "Not shown: cannot read" in report_text(folder, "attention")
