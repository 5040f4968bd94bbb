"""Statistics over depth: of the scores of circuits, one head of each layer is enough."""

import json
from types import SimpleNamespace

import pytest

from comparison.report.depth import attention_statistics


def run(folder, arm, scores):
    """A run whose layers have the scores of two heads, and their entropies."""
    (folder / "attention").mkdir(parents=True)
    layers = {name: {"normalised_entropy": [0.0, 0.5], "induction_score": of} for name, of in scores.items()}
    (folder / "attention" / "statistics.json").write_text(json.dumps({"before": layers}))
    return SimpleNamespace(seed=0, folder=folder, arm=arm)


def test_scores_are_those_of_the_best_head_and_means_over_seeds(tmp_path):
    runs = [
        run(tmp_path / "0", "induction", {"h.0.attn": [0.1, 0.2], "h.1.attn": [0.9, None]}),
        run(tmp_path / "1", "induction", {"h.0.attn": [0.4, 0.3], "h.1.attn": [0.1, 0.7]}),
    ]
    layers, depth = attention_statistics(runs)
    assert layers == ["h.0.attn", "h.1.attn"]
    assert depth["induction_score"]["induction"]["before"].tolist() == pytest.approx([0.3, 0.8])
    assert depth["normalised_entropy"]["induction"]["before"].tolist() == [0.25, 0.25]


def test_layers_without_scores_leave_the_others_statistics(tmp_path):
    """An encoder looks both ways: beside its decoder, no layer is drawn with a score."""
    both = run(tmp_path / "0", "default", {"encoder.0": [0.1, 0.2], "decoder.0": [0.1, 0.2]})
    path = both.folder / "attention" / "statistics.json"
    statistics = json.loads(path.read_text())
    del statistics["before"]["encoder.0"]["induction_score"]
    path.write_text(json.dumps(statistics))
    _, depth = attention_statistics([both])
    assert set(depth) == {"normalised_entropy"}
