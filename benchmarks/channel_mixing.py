"""Can channel mixing alone reach a spatial filter? Proposition 1 of 2404.01139, D ≥ k·f², on real patch embeddings.

The channels of a layer are convolved with fixed filters (random, impulses, boxes) and mixed by least squares towards a
random filter on one channel. What is left, over D / (k·f²); then the first layer of a trained ConvMixer.

python -m benchmarks.channel_mixing --output benchmarks/results
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from callbacks.figures import save_figure
from comparison.run.environment import environment
from lightning_modules.data import ImageData
from structured_init.analysis.channel_mixing import (
    channel_matrix,
    channels_needed,
    energy_rank,
    filter_basis,
    mixing_residual,
    numerical_rank,
)
from structured_init.conv.filters import box_filters, gaussian_filters, random_filters
from structured_init.draws import Draws
from structured_init.files import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENERGY = 1 / 3
FILTERS: dict[str, Callable[..., Tensor]] = {
    "random": lambda count, size, generator: random_filters(count, (size, size), ENERGY, generator=generator),
    "impulse": lambda count, size, generator: box_filters(count, (size, size), ENERGY, size=1, generator=generator),
    "Gaussian": lambda count, size, generator: gaussian_filters(count, (size, size), ENERGY, generator=generator),
    "box, one for all": lambda count, size, generator: box_filters(count, (size, size), ENERGY, generator=generator),
}
CASES = ((1, 3), (1, 5), (2, 3), (2, 5))  # patch size, filter size
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0)  # of k·f²
PIXELS, TARGETS = 2048, 8
FLOOR = 1e-12  # of the figure: below it lies rounding
CIFAR = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
COLORS = {"random": "#00798c", "impulse": "#d1495b", "Gaussian": "#edae49", "box, one for all": "#8a94a6"}


def main() -> None:
    """Measure what was asked for and write ``channel_mixing.{json,md,png}``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="uoft-cs/cifar10")
    parser.add_argument("--checkpoint", type=Path, help="state dict of a ConvMixer: locuslab's nn.Sequential")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    record: dict[str, Any] = {"surroundings": environment(), "seeds": arguments.seeds, "pixels": PIXELS}
    record["residuals"] = {
        f"patch {patch}, filter {size}": case(arguments.data, patch, size, range(arguments.seeds))
        for patch, size in CASES
    }
    record["activated"] = activated(arguments.data, 2, 3, range(arguments.seeds))
    if arguments.checkpoint:
        record["trained"] = trained(arguments.data, arguments.checkpoint, range(arguments.seeds))
    write_json(arguments.output / "channel_mixing.json", record)
    write_text(arguments.output / "channel_mixing.md", page(record))
    save_figure(figure(record), arguments.output / "channel_mixing.png")


@cache
def images(data: str, count: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return test images (count, 3, 32, 32) in float64, as many of each class."""
    source = ImageData(data, num_classes=10, test_fraction=0.02, mean=list(mean), std=list(std))
    source.setup("test")
    rows = torch.linspace(0, len(source.test_set) - 1, count).long().tolist()
    return source.test_set.__getitems__(rows)[0].double()


def embedded(data: str, patch: int, width: int, seed: int, activate: bool = False) -> Tensor:
    """Return patch embeddings (B, D, H, W) of a stem as PyTorch initializes it; with GELU and norm if ``activate``."""
    generator = Draws(seed).generator("stem", f"{patch} {width}")
    stem = nn.Conv2d(3, width, patch, patch, dtype=torch.float64)
    bound = (3 * patch**2) ** -0.5
    for parameter in stem.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    pixels = images(data, PIXELS * patch**2 // 32**2, *CIFAR)
    with torch.no_grad():
        tokens = stem(pixels)
        return nn.BatchNorm2d(width, dtype=torch.float64)(nn.functional.gelu(tokens)) if activate else tokens


def residual(inputs: Tensor, filters: Tensor, seed: int) -> float:
    """Return the mean residual over random targets on evenly spread channels."""
    size = filters.shape[1]
    targets = random_filters(TARGETS, (size, size), ENERGY, generator=Draws(seed).generator("targets", str(size)))
    channels = torch.linspace(0, inputs.shape[1] - 1, TARGETS).long()
    return mixing_residual(inputs, filters, targets, channels).mean().item()


def case(data: str, patch: int, size: int, seeds: Iterable[int], activate: bool = False) -> dict[str, Any]:
    """Return residuals over D for every kind of filter, per seed, with the rank that the embeddings have."""
    rank = numerical_rank(channel_matrix(embedded(data, patch, 8 * 3 * patch**2, 0)))
    needed = channels_needed(rank, size)
    widths = sorted({max(TARGETS, round(share * needed)) for share in SHARES} | {needed - 1})
    curves: dict[str, dict[int, list[float]]] = {name: {} for name in FILTERS}
    for name, draw in FILTERS.items():
        for width in widths:
            curves[name][width] = [
                residual(
                    embedded(data, patch, width, seed, activate),
                    draw(width, size, Draws(seed).generator(name, str(width))),
                    seed,
                )
                for seed in seeds
            ]
    return {"rank": rank, "needed": needed, "residuals": curves}


def activated(data: str, patch: int, size: int, seeds: Iterable[int]) -> dict[str, Any]:
    """Return the same with ConvMixer's GELU and batch norm behind the stem, and ranks over D."""
    found = case(data, patch, size, seeds, activate=True)
    found["ranks"] = {
        width: {
            "numerical": numerical_rank(tokens),
            "99 %": energy_rank(tokens, 0.99),
            "99.9 %": energy_rank(tokens, 0.999),
        }
        for width in (64, 256)
        for tokens in [channel_matrix(embedded(data, patch, width, 0, activate=True))]
    }
    return found


def trained(data: str, path: Path, seeds: Iterable[int]) -> dict[str, Any]:
    """Return the ranks in a trained ConvMixer's first layer, and how far fixed filters stay from its learned ones."""
    state = torch.load(path, weights_only=True, map_location="cpu")
    state = {name.removeprefix("module."): value.double() for name, value in state.items()}
    weight, filters = state["0.weight"], state["3.0.fn.0.weight"][:, 0]
    patch, width, size = weight.shape[2], len(weight), filters.shape[1]
    pixels = images(data, PIXELS * patch**2 // 32**2, *(HALF if "Half" in path.name else CIFAR))
    linear = nn.functional.conv2d(pixels, weight, state["0.bias"], stride=patch)
    norm = [state[f"2.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    tokens = nn.functional.batch_norm(nn.functional.gelu(linear), *norm)
    channels = torch.arange(0, width, width // 32)
    return {
        "file": path.name, "width": width, "patch": patch, "filter": size,
        "rank before GELU": numerical_rank(channel_matrix(linear)),
        "rank after GELU": numerical_rank(channel_matrix(tokens)),
        "99 % rank": energy_rank(channel_matrix(tokens), 0.99),
        "99.9 % rank": energy_rank(channel_matrix(tokens), 0.999),
        "filter basis": len(filter_basis(filters)),
        "filter basis, 1 %": len(filter_basis(filters, 0.01)),
        "residuals": {
            name: [
                mixing_residual(
                    tokens, draw(width, size, Draws(seed).generator(name, "trained")), filters[channels], channels
                ).mean().item()
                for seed in seeds
            ]
            for name, draw in FILTERS.items()
        },
    }  # fmt: skip


def page(record: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    about = record["surroundings"]
    seeds = record["seeds"]
    lines = [
        "# Can channel mixing alone reach a spatial filter?",
        "",
        "    python -m benchmarks.channel_mixing --checkpoint CONVMIXER.pth --output benchmarks/results",
        "",
        "![residual over D](channel_mixing.png)",
        "",
        f"Real CIFAR-10 test images, {record['pixels']:,} patches, {TARGETS} random target filters, mean of {seeds} "
        f"seeds, float64. The residual ‖Y w − t‖/‖t‖ is that of the best mixing; 0 is reached, 1 is out of reach. "
        f"{about['processor']}, torch {about['torch']}.",
        "",
        "## Linear patch embeddings: the proposition's own setting",
        "",
    ]
    lines += reading(record["residuals"])
    for name, found in record["residuals"].items():
        lines += table(f"{name}: k = {found['rank']}, k·f² = {found['needed']}", found)
    lines += ["## Behind ConvMixer's GELU and batch norm", ""]
    lines += [
        "The rank of the embeddings is then D itself, so k·f² is above D whatever D is. In units of the linear "
        "embedding's k·f²:",
        "",
    ]
    lines += table(f"patch 2, filter 3: linear k·f² = {record['activated']['needed']}", record["activated"])
    for width, ranks in record["activated"]["ranks"].items():
        said = ", ".join(f"{name} {value}" for name, value in ranks.items())
        lines += [f"Ranks at D = {width}: {said}.", ""]
    if "trained" in record:
        lines += trained_lines(record["trained"])
    return "\n".join(lines) + "\n"


def reading(cases: dict[str, Any]) -> list[str]:
    """Return what the bound comes to, over all cases and seeds."""

    def over(name: str, channels: Callable[[int], int], choose: Callable[[list[float]], float]) -> float:
        return choose([choose(found["residuals"][name][channels(found["needed"])]) for found in cases.values()])

    reached = over("random", lambda needed: needed, max)
    missed = over("random", lambda needed: needed - 1, min)
    impulses = [over("impulse", lambda needed: needed, choose) for choose in (min, max)]
    boxes = over("box, one for all", lambda needed: needed, min)
    return [
        f"With random filters the residual is at most {reached:.0e} at D = k·f², and at least {missed:.0e} with one "
        f"channel fewer. There, impulses at random places leave {impulses[0]:.2g} to {impulses[1]:.2g}: the bound is "
        "necessary, and sufficient once every place is drawn k times. One box for all channels leaves at least "
        f"{boxes:.2g} whatever D is.",
        "",
    ]


def table(title: str, found: dict[str, Any]) -> list[str]:
    """Return a table of mean residuals, a row per D."""
    names = list(found["residuals"])
    lines = [f"**{title}**", "", f"| D | D / k·f² | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for width in found["residuals"][names[0]]:
        cells = " | ".join(f"{mean(found['residuals'][name][width]):.2g}" for name in names)
        lines.append(f"| {width} | {width / found['needed']:.2f} | {cells} |")
    return [*lines, ""]


def trained_lines(found: dict[str, Any]) -> list[str]:
    """Return what a trained network's first layer says."""
    lines = [
        "## The first layer of a trained ConvMixer",
        "",
        f"`{found['file']}`: D = {found['width']}, patch {found['patch']}, f = {found['filter']}, so f² = "
        f"{found['filter'] ** 2}. Rank of the embeddings before GELU {found['rank before GELU']}, behind GELU and norm "
        f"{found['rank after GELU']} (99 % of the energy: {found['99 % rank']}, 99.9 %: {found['99.9 % rank']}). The "
        f"learned filters span {found['filter basis']} dimensions, {found['filter basis, 1 %']} of them above 1 % of "
        "the largest.",
        "",
        "Residual of reaching 32 learned filters from fixed ones:",
        "",
        "| fixed filters | residual, mean | least – most of the seeds |",
        "|---|---|---|",
    ]
    for name, each in found["residuals"].items():
        lines.append(f"| {name} | {mean(each):.3f} | {min(each):.3f} – {max(each):.3f} |")
    return lines


def figure(record: dict[str, Any]) -> Figure:
    """Draw residuals over D / (k·f²), a panel per case, and the activated embeddings last."""
    from matplotlib.figure import Figure

    panels = {
        **{f"{name}: k = {found['rank']}": found for name, found in record["residuals"].items()},
        "patch 2, filter 3, GELU and norm": record["activated"],
    }
    drawing = Figure(figsize=(3.0 * len(panels), 3.5), layout="constrained", facecolor="white")
    axes = drawing.subplots(1, len(panels), sharey=True)
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        axis.axvline(1, color="#8a8a8a", linewidth=1, linestyle=(0, (4, 3)))
        for name, curve in found["residuals"].items():
            shares = [width / found["needed"] for width in curve]
            for seed in range(record["seeds"]):
                axis.plot(shares, [max(each[seed], FLOOR) for each in curve.values()], ".", color=COLORS[name], ms=3.5)
            worst = [max(*each, FLOOR) for each in curve.values()]
            axis.plot(shares, worst, color=COLORS[name], linewidth=1.8, label=name)
        axis.set_yscale("log")
        axis.set_title(title, fontsize=9.5, loc="left", color="#222222")
        axis.set_xlabel("D / (k·f²)", fontsize=8.5)
        axis.tick_params(labelsize=8, color="#8a8a8a")
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#c8c8c8")
        axis.grid(axis="y", color="#eeeeee", linewidth=0.7)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("residual ‖Yw − t‖ / ‖t‖", fontsize=8.5)
    axes[0].annotate("D = k·f²", (1, 1e-8), xytext=(4, 0), textcoords="offset points", fontsize=8, color="#8a8a8a")
    axes[0].annotate("reached", (0.25, FLOOR), xytext=(-12, 6), textcoords="offset points",
                     fontsize=7.5, color="#8a8a8a")  # fmt: skip
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    drawing.suptitle(
        "What channel mixing behind fixed filters leaves of a random target, on CIFAR-10 patches; lines, worst seed",
        fontsize=11,
    )
    return drawing


if __name__ == "__main__":
    main()
