"""What users write, checked by mypy in strict mode (``make types``): a wrong or missing type of a public name fails.

Nothing here is run. ``assert_type`` is the test: the type on its right is what the documentation promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor, nn
from typing_extensions import assert_type

from callbacks import AttentionMapCallback, ExactResume, InitCallback
from callbacks.figures import map_figure
from comparison.intervals import Interval, paired_values, t_interval
from comparison.runs.records import load_curves, load_results
from comparison.say import write_report
from lightning_modules import ImageClassifier, Task
from structured_init import (
    AttentionLayout,
    AttentionSite,
    Compose,
    Draws,
    FilterCovariance,
    Impulse,
    Initializer,
    InitReport,
    KaimingUniform,
    Mimetic,
    MimeticStateSpace,
    Positions,
    PreviousToken,
    Projection,
    SeparableSolver,
    StructuredInitError,
    Weights,
    attention_sites,
    initialize,
    random_orthogonal,
    register_attention,
    required_attention_sites,
)
from structured_init.analysis import Audit, audit, capture_attention, lipschitz_bound, summarize, weight_products


def initialize_a_model(model: nn.Module, images: Tensor) -> InitReport:
    """The call, and what it returns."""
    report = initialize(model, Compose([KaimingUniform(), Mimetic(vo_beta=0.2, where="blocks.0.attn")]), seed=0)
    assert_type(report, InitReport)
    assert_type(report.summary(), str)
    assert_type(report.skipped, dict[str, str])
    assert_type(report.unset_positions, list[str])
    report.save(Path("init_report.json"))
    initialize(model, Impulse(kernel_size=3, solver="separable"), batch=images)
    initialize(model, Impulse(solver=SeparableSolver(strength=16.0)), batch={"pixel_values": images}, strict=True)
    for initializer in (Positions("sincos"), MimeticStateSpace(), FilterCovariance(frozen=True), PreviousToken()):
        initialize(model, initializer, dry_run=True)
    return report


def look_at_a_model(model: nn.Module, images: Tensor) -> Figure:
    """Sites, maps, numbers."""
    sites = attention_sites(model)
    assert_type(sites, list[AttentionSite])
    assert_type(sites[0].query, Tensor)
    maps = capture_attention(model, images)
    assert_type(maps, dict[str, Tensor])
    summarize(maps[sites[0].name], grid=(14, 14), prefix_tokens=1)
    weight_products(sites[0]).summary()
    assert_type(audit(model), Audit)
    assert_type(lipschitz_bound(model, images), float)
    return map_figure({"before": {name: of_images.mean(0) for name, of_images in maps.items()}})


class SymmetricHeads(Initializer):
    """An initializer of one's own, as in ``docs/extending.md``."""

    def __init__(self, gain: float = 1.0) -> None:
        if gain <= 0:
            raise StructuredInitError("SymmetricHeads: gain must be positive")
        self.gain = gain

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site in weights.each(required_attention_sites(weights, None, "SymmetricHeads")):
            generator = rng.generator(site.name, "heads")
            site.by("SymmetricHeads").key = self.gain * random_orthogonal(*site.key.shape[1:], generator=generator)


class MyAttention(nn.Module):
    """A host of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))


@register_attention(MyAttention, grid=(8, 8))
def my_attention(module: MyAttention) -> AttentionLayout:
    """Where it keeps its matrices."""
    query, key, value = (Projection(each.weight, 4, 8) for each in (module.q, module.k, module.v))
    return AttentionLayout(query, key, value, output=Projection(module.out.weight, 4, 8, axis=1))


class MyClassifier(ImageClassifier):
    """A task of one's own."""

    def configure_network(self) -> nn.Module:
        return nn.Linear(64, self.num_classes)


def train_with_lightning() -> list[object]:
    """Callbacks and tasks."""
    task: Task = MyClassifier(num_classes=3)
    return [InitCallback(Mimetic(), seed=0), AttentionMapCallback(figures=False), ExactResume(), task]


def read_a_comparison(folder: str, arm: Mapping[int, float], baseline: Mapping[int, float]) -> None:
    """Tables and intervals."""
    assert_type(load_results(folder), pd.DataFrame)
    assert_type(load_curves(folder), pd.DataFrame)
    difference = t_interval(paired_values(arm, baseline))
    assert_type(difference, Interval)
    assert_type(difference.mean, float)
    write_report(folder, baseline="default")
