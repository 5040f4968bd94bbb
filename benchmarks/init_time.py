"""How long an initialization takes, against the published procedures and over the size of a network.

Times are processor seconds of one thread, which other work on the machine changes far less than wall time. The two
sides of a ratio take turns.

python -m benchmarks.init_time --output runs/init_time
"""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.init_against import (
    VIT_B,
    adam_rows,
    against_adam,
    against_mimetic,
    against_svd,
    mimetic_rows,
    network,
    svd_rows,
    whole,
)
from benchmarks.init_shapes import INITIALIZATIONS, held
from benchmarks.memory import forked
from benchmarks.timing import alternate, measure_parts, parser
from structured_init.util.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMED = ("separable", "svd", "mimetic", "mimetic, float32")
CURVES = {  # (width, layers, heads) of the networks along each curve, 14 × 14 tokens
    "width": ((192, 1, 3), (384, 1, 6), (768, 1, 12), (1024, 1, 16), (2048, 1, 32), (4096, 1, 32)),
    "heads": tuple((768, 1, heads) for heads in (1, 3, 6, 12, 24, 48)),
    "layers": tuple((384, layers, 6) for layers in (1, 2, 4, 8, 16, 32)),
}
SIZES = ("width", "layers", "heads")
LABELS = {"width": "width, heads; one layer", "heads": "heads; one layer of width 768", "layers": "layers of width 384"}
COLORS = {"mimetic": "#2b8cbe", "mimetic, float32": "#7bccc4", "svd": "#d95f0e", "separable": "#31a354"}


def main() -> None:
    """Measure what was asked for, and draw the curve where it is part of it."""
    options = parser(__doc__, MEASURES, repeats=3)
    options.add_argument("--adam-repeats", type=int, default=1)
    options.add_argument("--adam-iterations", type=int, default=10_000)
    options.add_argument("--max-width", type=int, default=4096, help="of the curve")
    options.add_argument("--mimetic-width", type=int, default=2048, help="of Mimetic's curve; 4096 takes 15 minutes")
    arguments = options.parse_args()
    record = measure_parts("init_time", MEASURES, table, arguments)
    if "curve" in record:
        with replacing(arguments.output / "init_time.png") as temporary:
            figure(record["curve"]).savefig(temporary, dpi=150)


def memory(arguments: Namespace) -> dict[str, dict[str, float]]:
    """Return the peak memory beyond the model, of ViT-B at two depths, in units of one layer's parameters."""
    layer = sum(4 * parameter.numel() for parameter in network(*VIT_B[:3], 1, VIT_B[4]).blocks[0].parameters())
    return {
        name: {
            str(depth): forked(held, partial(network, *VIT_B[:3], depth, VIT_B[4]), INITIALIZATIONS[name]) / layer
            for depth in (2, 12)
        }
        for name in TIMED
    }


def curve(arguments: Namespace) -> dict[str, list[dict[str, Any]]]:
    """Time initializations over the width, the heads and the layers; one repeat where a layer takes long."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, points in CURVES.items():
        for width, layers, heads in points:
            if width > arguments.max_width:
                continue
            model = network(*VIT_B[:2], width, layers, heads, mlp_ratio=0.01)
            names = [each for each in TIMED if width <= arguments.mimetic_width or not each.startswith("mimetic")]
            runs = {each: partial(whole, model, each) for each in names}
            times = alternate(runs, arguments.repeats if width <= 1024 else 1)
            found.setdefault(name, []).append({"width": width, "layers": layers, "heads": heads, "times": times})
            print(f"{name}: {width}, {layers} layers, {heads} heads", file=sys.stderr, flush=True)
    return found


# memory first: it forks, which is safe before autograd runs
MEASURES = {
    "memory": memory,
    "svd": against_svd,
    "mimetic": against_mimetic,
    "curve": curve,
    "adam": against_adam,
}


def table(record: dict[str, Any]) -> str:
    """Return all tables that the record has numbers for."""
    lines = [", ".join(f"{name} {value}" for name, value in record["surroundings"].items())]
    for part, rows in ROWS.items():
        lines += ["", *rows(record[part])] if part in record else []
    return "\n".join(lines)


def memory_rows(found: dict[str, dict[str, float]]) -> list[str]:
    """Return a row per initialization."""
    lines = ["## Memory held beyond the model at the peak, ViT-B, in layers of 28 MB", ""]
    lines += ["| | 2 layers | 12 layers |", "|---|---|---|"]
    return lines + [f"| {name} | {row['2']:.2f} | {row['12']:.2f} |" for name, row in found.items()]


def curve_rows(curves: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a row per network, what varies in bold."""
    lines = ["## Over width, heads and layers, 14 × 14 tokens: the whole call, seconds", ""]
    lines += [f"| width | layers | heads | {' | '.join(TIMED)} |", "|---" * (3 + len(TIMED)) + "|"]
    for name, points in curves.items():
        for point in points:
            times = point["times"]
            cells = (f"{median(times[each]):.3g}" if each in times else "–" for each in TIMED)
            sizes = (f"**{point[size]}**" if size == name else f"{point[size]}" for size in SIZES)
            lines.append(f"| {' | '.join((*sizes, *cells))} |")
    return [*lines, "", "![the same as curves](init_time.png)"]


ROWS = {
    "svd": svd_rows,
    "adam": adam_rows,
    "mimetic": mimetic_rows,
    "memory": memory_rows,
    "curve": curve_rows,
}


def figure(curves: dict[str, list[dict[str, Any]]]) -> Figure:
    """Draw seconds over width, heads and layers, side by side on one axis of seconds."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 3.8), layout="constrained", facecolor="white")
    axes = drawing.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        for each, color in COLORS.items():
            known = [(point[name], median(point["times"][each])) for point in points if each in point["times"]]
            axis.loglog(*zip(*known, strict=True), "o-", color=color, linewidth=2, markersize=5, label=each)
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


if __name__ == "__main__":
    main()
