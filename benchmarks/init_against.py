"""Our initializations against published procedures, side by side: times, what they go into, and how far both are apart.

Times are processor seconds of one thread, and the sides of a ratio take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from benchmarks.init_published import adam_published, mimetic_published, svd_layer, svd_published
from benchmarks.init_shapes import INITIALIZATIONS
from benchmarks.timing import SEED, Stopwatch, Times, alternate, seconds
from lightning_modules.networks.vision_transformer import vision_transformer
from structured_init import Impulse, SeparableSolver, SvdSolver, attention_sites, initialize
from structured_init.impulse import ImpulseSolver
from structured_init.util.draws import Draws

#             image  patch  width  layers  heads
VIT_B =      (224,   16,    768,   12,     12)  # fmt: skip
VIT_B_4 =    (224,   16,    768,   4,      12)  # fmt: skip
VIT_T =      (32,    2,     192,   12,     3)  # fmt: skip


def network(image: int, patch: int, width: int, layers: int, heads: int, **changes: Any) -> VisionTransformer:
    """Build a network without a class token, as the published runs of adam have it."""
    return vision_transformer(image, patch, width, layers, heads, **changes)


def whole(model: VisionTransformer, name: str) -> float:
    """Time one call of ``initialize``."""
    return seconds(lambda: initialize(model, INITIALIZATIONS[name], seed=SEED))


def against_svd(arguments: argparse.Namespace) -> Times:
    """Time ``separable`` and the library's ``svd`` against 2505.19985 as published, on ViT-B/16 at 224 pixels."""
    model = network(*VIT_B)
    solves: dict[str, Stopwatch] = {}

    def published() -> float:
        solves["published"] = Stopwatch(svd_layer)
        return seconds(lambda: svd_published(model, torch.Generator().manual_seed(SEED), solves["published"]))

    contestants: dict[str, Callable[[], float]] = {}
    for name, run in (
        ("published", published),
        ("separable", partial(timed_solver, model, solves, "separable", SeparableSolver)),
        ("svd", partial(timed_solver, model, solves, "svd", SvdSolver)),
    ):
        contestants[f"{name}, whole"] = run
        contestants[f"{name}, solve"] = lambda name=name: solves[name].seconds  # of the run before
    contestants["svd, whole"]()  # the first call of all loads libraries
    return alternate(contestants, arguments.repeats)


def against_adam(arguments: argparse.Namespace) -> Times:
    """Time ``separable`` against 2404.01139 as published, on ViT-T/2 at 32 pixels; fewer repeats, since it is long."""
    model, steps = network(*VIT_T), arguments.adam_iterations
    published = {
        f"published, {steps} steps": lambda: seconds(
            lambda: adam_published(model, steps, torch.Generator().manual_seed(SEED))
        )
    }
    solves: dict[str, Stopwatch] = {}
    separable = {
        "separable, whole": partial(timed_solver, model, solves, "separable", SeparableSolver),
        "separable, solve": lambda: solves["separable"].seconds,  # of the run before
    }
    separable["separable, whole"]()  # the first call loads libraries
    before = alternate(separable, arguments.repeats)
    times = alternate(published, arguments.adam_repeats)
    after = alternate(separable, arguments.repeats)
    return times | {name: before[name] + after[name] for name in separable}


def timed_solver(model: VisionTransformer, solves: dict[str, Stopwatch], name: str, kind: type[ImpulseSolver]) -> float:
    """Time one whole initialization, and put aside what its solutions took."""
    solver = kind()
    solver.solve = solves[name] = Stopwatch(solver.solve)
    return seconds(lambda: initialize(model, Impulse(solver=solver), seed=SEED))


def against_mimetic(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time ``Mimetic`` against full decompositions on four of ViT-B's layers, which are all alike, and compare both."""
    model = network(*VIT_B_4)
    whole(model, "mimetic")
    times = alternate(
        {
            "published": lambda: seconds(lambda: mimetic_published(model, drawn("float64"))),
            "mimetic": lambda: whole(model, "mimetic"),
            "mimetic, float32": lambda: whole(model, "mimetic, float32"),
        },
        arguments.repeats,
    )
    return {"times": times, "differences": differences()}


def drawn(precision: str) -> Callable[[int, str, int], np.ndarray]:
    """Return the noise that the library draws, so that both sides factor the same matrices."""
    generators: dict[tuple[int, str], torch.Generator] = {}

    def noise(layer: int, part: str, width: int) -> np.ndarray:
        generator = generators.setdefault((layer, part), Draws(SEED).generator(f"blocks.{layer}.attn", part))
        draw = torch.randn(width, width, dtype=getattr(torch, precision), generator=generator)
        return draw.double().numpy() / width**0.5

    return noise


def differences(sizes: tuple[int, ...] = (224, 16, 768, 1, 12)) -> dict[str, dict[str, float]]:
    """Return how far Mimetic's products and factors are from the transcription's, in Frobenius norm, the worst head."""
    found: dict[str, dict[str, float]] = {}
    for name in ("mimetic", "mimetic, float32"):
        mimetic = INITIALIZATIONS[name]
        ours, theirs = network(*sizes).double(), network(*sizes).double()
        initialize(ours, mimetic, seed=SEED)
        mimetic_published(theirs, drawn(mimetic.precision))
        (site,), (other,) = attention_sites(ours), attention_sites(theirs)
        signs = (site.query * other.query).sum(dim=1, keepdim=True).sign()
        found[name] = {
            "query_key product": apart(site.query @ site.key.mT, other.query @ other.key.mT),
            "value_output product": apart((site.value @ site.output).sum(0), (other.value @ other.output).sum(0)),
            "query": apart(site.query * signs, other.query),
            "key": apart(site.key * signs, other.key),
        }
    return found


def apart(found: Tensor, wanted: Tensor) -> float:
    """Return ‖found − wanted‖ / ‖wanted‖, the largest of a batch."""
    norm = torch.linalg.matrix_norm
    return (norm(found - wanted) / norm(wanted)).max().item()


def svd_rows(found: Times) -> list[str]:
    """Return the table against 2505.19985."""
    title = "## Against 2505.19985, ViT-B/16 at 224 pixels, 12 layers: queries, keys and positions"
    return [title, "", *ratios(found, {"solve": "published, solve", "whole": "published, whole"})]


def adam_rows(found: Times) -> list[str]:
    """Return the table against 2404.01139."""
    title = "## Against 2404.01139, ViT-T/2 at 32 pixels: one solution, copied into 12 layers"
    published = next(name for name in found if "published" in name)
    return [title, "", *ratios(found, {"whole": published, "solve": published})]


def mimetic_rows(found: dict[str, Any]) -> list[str]:
    """Return the tables against 2305.09828."""
    lines = ["## Against 2305.09828, four layers of ViT-B: a full float64 SVD per head, and one per layer", ""]
    lines += ratios(found["times"], {"": "published"})
    lines += ["", "Distance from the transcription for the same Z, ‖·‖ relative, worst head:", ""]
    lines += ["| | products: query–key | value–output | factors: query | key |", "|---|---|---|---|---|"]
    return lines + [
        f"| {name} | {' | '.join(f'{value:.0e}' for value in row.values())} |"
        for name, row in found["differences"].items()
    ]


def ratios(times: Times, against: dict[str, str]) -> list[str]:
    """Return rows of median, spread and, against the other side that ends alike, the ratio of medians."""
    rows = ["| | seconds, median | least – most | n | times faster |", "|---|---|---|---|---|"]
    for name, each in times.items():
        published = next(other for ending, other in against.items() if name.endswith(ending) or other == name)
        ratio = "" if name in against.values() else f"**{median(times[published]) / median(each):.3g}**"
        rows.append(f"| {name} | {median(each):.3g} | {min(each):.3g} – {max(each):.3g} | {len(each)} | {ratio} |")
    return rows
