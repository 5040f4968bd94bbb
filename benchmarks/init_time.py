"""How long a start takes, against transcriptions of the published procedures: ratios on one thread, side by side.

Times are processor seconds of one thread, which other work on the machine changes far less than wall time. The two
sides of a ratio take turns.

python -m benchmarks.init_time --output runs/init_time
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from benchmarks.memory import hand_back, peak
from benchmarks.published_starts import adam_start, mimetic_start, svd_layer, svd_start
from benchmarks.timing import Stopwatch, Times, alternate, seconds
from comparison.run.environment import environment
from lightning_modules.networks.vision_transformer import vision_transformer
from structured_init import (
    Impulse,
    Initializer,
    Mimetic,
    SeparableSolver,
    SvdSolver,
    attention_sites,
    initialize,
)
from structured_init.attention.impulse import ImpulseSolver
from structured_init.draws import Draws
from structured_init.files import replacing, write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
#             image  patch  width  layers  heads
VIT_B =      (224,   16,    768,   12,     12)  # fmt: skip
VIT_B_4 =    (224,   16,    768,   4,      12)  # fmt: skip
VIT_T =      (32,    2,     192,   12,     3)  # fmt: skip
CURVES = {  # (width, layers, heads) of the networks along each curve, 14 × 14 tokens
    "width": ((192, 1, 3), (384, 1, 6), (768, 1, 12), (1024, 1, 16), (2048, 1, 32), (4096, 1, 32)),
    "heads": tuple((768, 1, heads) for heads in (1, 3, 6, 12, 24, 48)),
    "layers": tuple((384, layers, 6) for layers in (1, 2, 4, 8, 16, 32)),
}
SIZES = ("width", "layers", "heads")
LABELS = {"width": "width, heads; one layer", "heads": "heads; one layer of width 768", "layers": "layers of width 384"}
COLORS = {"mimetic": "#2b8cbe", "mimetic, float32": "#7bccc4", "svd": "#d95f0e", "separable": "#31a354"}
PARTS = ("memory", "svd", "mimetic", "curve", "adam")  # memory first: it forks, which is safe before autograd runs
STARTS: dict[str, Initializer] = {
    "separable": Impulse(solver="separable"),
    "svd": Impulse(solver="svd"),
    "mimetic": Mimetic(positions="keep"),
    "mimetic, float32": Mimetic(positions="keep", precision="float32"),
}


def main() -> None:
    """Measure part by part, writing what is there after each."""
    arguments = parse()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"settings": {key: str(value) for key, value in vars(arguments).items()}}
    with threadpool_limits(1):
        record["surroundings"] = environment()
        for part in arguments.parts:
            record[part] = MEASURES[part](arguments)
            write(arguments.output, record)
    print(table(record))


def network(image: int, patch: int, width: int, layers: int, heads: int, **changes: Any) -> VisionTransformer:
    """Build a network without a class token, as the published runs of adam have it."""
    return vision_transformer(image, patch, width, layers, heads, **changes)


def against_svd(arguments: argparse.Namespace) -> Times:
    """Time ``separable`` and the library's ``svd`` against 2505.19985 as published, on ViT-B/16 at 224 pixels."""
    model = network(*VIT_B)
    solves: dict[str, Stopwatch] = {}

    def published() -> float:
        solves["published"] = Stopwatch(svd_layer)
        return seconds(lambda: svd_start(model, torch.Generator().manual_seed(SEED), solves["published"]))

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
            lambda: adam_start(model, steps, torch.Generator().manual_seed(SEED))
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
    """Time one whole start, and put aside what its solutions took."""
    solver = kind()
    solver.solve = solves[name] = Stopwatch(solver.solve)
    return seconds(lambda: initialize(model, Impulse(solver=solver), seed=SEED))


def against_mimetic(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time ``Mimetic`` against full decompositions on four of ViT-B's layers, which are all alike, and compare both."""
    model = network(*VIT_B_4)
    whole(model, "mimetic")
    times = alternate(
        {
            "published": lambda: seconds(lambda: mimetic_start(model, drawn("float64"))),
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
    for name, start in STARTS.items():
        if not isinstance(start, Mimetic):
            continue
        ours, theirs = network(*sizes).double(), network(*sizes).double()
        initialize(ours, start, seed=SEED)
        mimetic_start(theirs, drawn(start.precision))
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


def memory(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the peak memory beyond the model, of ViT-B at two depths, in units of one layer's parameters."""
    found: dict[str, dict[str, float]] = {}
    for name in STARTS:
        row = found.setdefault(name, {})
        for layers in (2, 12):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                row[str(layers)] = pool.apply(held_layers, (name, layers))
            print(f"{name}, {layers} layers: {row[str(layers)]:.2f}", file=sys.stderr, flush=True)
    return found


def held_layers(name: str, layers: int) -> float:
    """Return what this process holds, at its peak, while a model is initialized again, in layers."""
    hand_back()
    model = network(*VIT_B[:3], layers, VIT_B[4])
    whole(model, name)
    layer = sum(4 * parameter.numel() for parameter in model.blocks[0].parameters())
    return peak(lambda: whole(model, name)) / layer


def curve(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Time starts over the width, the heads and the layers of a network; one repeat where a layer takes long."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, points in CURVES.items():
        for width, layers, heads in points:
            if width > arguments.max_width:
                continue
            model = network(*VIT_B[:2], width, layers, heads, mlp_ratio=0.01)
            starts = [start for start in STARTS if width <= arguments.mimetic_width or not start.startswith("mimetic")]
            runs = {start: partial(whole, model, start) for start in starts}
            times = alternate(runs, arguments.repeats if width <= 1024 else 1)
            found.setdefault(name, []).append({"width": width, "layers": layers, "heads": heads, "times": times})
            print(f"{name}: {width}, {layers} layers, {heads} heads", file=sys.stderr, flush=True)
    return found


def whole(model: VisionTransformer, name: str) -> float:
    """Time one call of ``initialize``."""
    return seconds(lambda: initialize(model, STARTS[name], seed=SEED))


MEASURES = dict(zip(PARTS, (memory, against_svd, against_mimetic, curve, against_adam), strict=True))


def write(output: Path, record: dict[str, Any]) -> None:
    """Write the numbers as JSON, the tables as Markdown, and the curve as a picture where there is one."""
    write_json(output / "init_time.json", record)
    write_text(output / "init_time.md", table(record) + "\n")
    if "curve" in record:
        with replacing(output / "init_time.png") as temporary:
            figure(record["curve"]).savefig(temporary, dpi=150)


def table(record: dict[str, Any]) -> str:
    """Return all tables that the record has numbers for."""
    lines = [", ".join(f"{name} {value}" for name, value in record["surroundings"].items())]
    if "svd" in record:
        lines += ["", "## Against 2505.19985, ViT-B/16 at 224 pixels, 12 layers: queries, keys and positions", ""]
        lines += ratios(record["svd"], {"solve": "published, solve", "whole": "published, whole"})
    if "adam" in record:
        lines += ["", "## Against 2404.01139, ViT-T/2 at 32 pixels: one solution, copied into 12 layers", ""]
        published = next(name for name in record["adam"] if "published" in name)
        lines += ratios(record["adam"], {"whole": published, "solve": published})
    if "mimetic" in record:
        lines += ["", "## Against 2305.09828, four layers of ViT-B: a full float64 SVD per head, and one per layer", ""]
        lines += ratios(record["mimetic"]["times"], {"": "published"})
        lines += ["", "Distance from the transcription for the same Z, ‖·‖ relative, worst head:", ""]
        lines += ["| | products: query–key | value–output | factors: query | key |", "|---|---|---|---|---|"]
        for name, row in record["mimetic"]["differences"].items():
            lines.append(f"| {name} | {' | '.join(f'{value:.0e}' for value in row.values())} |")
    if "memory" in record:
        lines += ["", "## Memory held beyond the model at the peak, ViT-B, in layers of 28 MB", ""]
        lines += ["| | 2 layers | 12 layers |", "|---|---|---|"]
        lines += [f"| {name} | {row['2']:.2f} | {row['12']:.2f} |" for name, row in record["memory"].items()]
    if "curve" in record:
        lines += ["", "## Over width, heads and layers, 14 × 14 tokens: the whole call, seconds", ""]
        lines += [f"| width | layers | heads | {' | '.join(STARTS)} |", "|---" * (3 + len(STARTS)) + "|"]
        for name, points in record["curve"].items():
            for point in points:
                times = point["times"]
                cells = (f"{median(times[start]):.3g}" if start in times else "–" for start in STARTS)
                sizes = (f"**{point[size]}**" if size == name else f"{point[size]}" for size in SIZES)
                lines.append(f"| {' | '.join((*sizes, *cells))} |")
        lines += ["", "![the same as curves](init_time.png)"]
    return "\n".join(lines)


def ratios(times: Times, against: dict[str, str]) -> list[str]:
    """Return rows of median, spread and, against the published side that ends alike, the ratio of medians."""
    rows = ["| | seconds, median | least – most | n | times faster |", "|---|---|---|---|---|"]
    for name, each in times.items():
        published = next(other for ending, other in against.items() if name.endswith(ending) or other == name)
        ratio = "" if name.startswith("published") else f"**{median(times[published]) / median(each):.3g}**"
        rows.append(f"| {name} | {median(each):.3g} | {min(each):.3g} – {max(each):.3g} | {len(each)} | {ratio} |")
    return rows


def figure(curves: dict[str, list[dict[str, Any]]]) -> Figure:
    """Draw seconds over width, heads and layers, side by side on one axis of seconds."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 3.8), layout="constrained", facecolor="white")
    axes = drawing.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        for start, color in COLORS.items():
            known = [(point[name], median(point["times"][start])) for point in points if start in point["times"]]
            axis.loglog(*zip(*known, strict=True), "o-", color=color, linewidth=2, markersize=5, label=start)
        ticks = [str(point[name]) + (f"\n{point['heads']}" if name == "width" else "") for point in points]
        axis.set_xticks([point[name] for point in points], ticks, fontsize=8)
        axis.set_xlabel(LABELS[name])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("seconds, one thread")
    axes[0].legend(frameon=False)
    axes[0].set_title("initialize() on vision transformers", fontsize=11, loc="left")
    return drawing


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--adam-repeats", type=int, default=1)
    parser.add_argument("--adam-iterations", type=int, default=10_000)
    parser.add_argument("--max-width", type=int, default=4096, help="of the curve")
    parser.add_argument("--mimetic-width", type=int, default=2048, help="of Mimetic's curve; 4096 takes 15 minutes")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
