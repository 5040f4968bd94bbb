"""Where structure pays on few images: a picture and a table of ``benchmarks/results/few_images.csv``.

    python -m benchmarks.few_images_picture --output benchmarks/results/few_images

It writes ``few_images.png`` and ``few_images.md``. A place that has not run is empty.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.few_images import ARMS, DATA, FIRST, IMAGES, RESULTS
from callbacks.figures.style import DIVERGING, save_figure
from comparison.intervals import Interval, paired_values, t_interval
from comparison.tables import Cell, Table
from structured_init.util.files import write_text

DIFFERENCES = (  # arm, reference
    ("sincos", "default"),
    ("codes", "default"),
    ("mimetic", "default"),
    ("mimetic", "sincos"),
    ("mimetic", "mimetic_scrambled"),
)
NAMES = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST"}
WIDEST = 6.0  # points at the ends of the colours


def difference(cell: pd.DataFrame, arm: str, reference: str) -> Interval:
    """Return how many points of accuracy an arm has more than another at a place, paired by seed."""
    values = [100 * cell[cell["arm"] == each].set_index("seed")["test/accuracy"] for each in (arm, reference)]
    return t_interval(paired_values(*(each.to_dict() for each in values)))


def differences(table: pd.DataFrame, data: str, arm: str, reference: str) -> dict[tuple[int, int], Interval]:
    """Return a difference for each (images, steps) of a data set that has run."""
    cells = table[table["data"] == data].groupby(["images", "steps"])
    return {place: difference(cell, arm, reference) for place, cell in cells}


def draw_map(axes: Axes, found: dict[tuple[int, int], Interval]) -> None:
    """Draw images by steps: the difference in colour and in figures, bold where its interval excludes zero."""
    values = np.full((len(IMAGES), len(FIRST)), np.nan)
    for (images, steps), interval in found.items():
        row, column = IMAGES.index(images), [*FIRST].index(steps)
        values[row, column] = interval.mean
        text = f"{interval.mean:+.1f}\n±{interval.half_width:.1f}".replace("-", "−")
        axes.text(
            *(column, row, text),
            ha="center",
            va="center",
            color="white" if abs(interval.mean) > 0.6 * WIDEST else "black",
            weight="bold" if interval.excludes_zero else "normal",
        )
    axes.imshow(values, cmap=DIVERGING, vmin=-WIDEST, vmax=WIDEST)
    axes.set_xticks(range(len(FIRST)), [f"{steps:,}" for steps in FIRST])
    axes.set_yticks(range(len(IMAGES)), [f"{images:,}" for images in IMAGES])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def figure(table: pd.DataFrame) -> Figure:
    """Return a map for each data set (rows) and difference (columns)."""
    known = [data for data in DATA if (table["data"] == data).any()]
    drawn = Figure(figsize=(2.6 * len(DIFFERENCES), 2.9 * len(known)), layout="constrained")
    panels = drawn.subplots(len(known), len(DIFFERENCES), squeeze=False)
    for data, row in zip(known, panels, strict=True):
        row[0].set_ylabel(f"{NAMES[data]}\nimages")
        for (arm, reference), axes in zip(DIFFERENCES, row, strict=True):
            draw_map(axes, differences(table, data, arm, reference))
            axes.set_title(f"{arm.replace('_', ' ')} −\n{reference.replace('_', ' ')}")
            axes.set_xlabel("steps")
    drawn.suptitle("Points of test accuracy, mean and half its 95 % interval; bold where that excludes zero")
    return drawn


def page(table: pd.DataFrame) -> str:
    """Return the page: the accuracies of all arms by place with their learning rates, then the differences."""
    rates, gains = [], []
    for (data, images, steps), cell in table.groupby(["data", "images", "steps"], sort=False):
        place = [Cell(NAMES[data]), Cell(f"{images:,}"), Cell(f"{steps:,}")]
        arms = cell.groupby("arm")
        accuracy, rate = 100 * arms["test/accuracy"].mean(), arms["lr"].first()
        rates.append([*place, *(Cell(f"{accuracy[arm]:.1f}", f"{rate[arm]:g}") for arm in ARMS)])
        gains.append([*place, *(Cell(difference(cell, *each).text(1, signed=True)) for each in DIFFERENCES)])
    place = ["data", "images", "steps"]
    return (
        "# Where structure pays on few images\n\n"
        "    python -m benchmarks.few_images\n"
        "    python -m benchmarks.few_images_picture\n\n"
        "The rule is [where structure pays](../../docs/contributing/baselines_rules.md#where-structure-pays).\n\n"
        "![Differences by images and steps](few_images.png)\n\n"
        "Differences in points of test accuracy, paired by seed, with 95 % intervals of Student's t.\n\n"
        f"{Table([*place, *(f'{arm} − {reference}' for arm, reference in DIFFERENCES)], gains).markdown()}\n\n"
        "Test accuracy in percent, mean of five seeds, with the learning rate of the arm.\n\n"
        f"{Table([*place, *ARMS], rates).markdown()}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--output", type=Path, default=RESULTS.with_suffix(""))
    given = parser.parse_args(arguments)
    table = pd.read_csv(given.results)
    save_figure(figure(table), given.output.with_suffix(".png"), dpi=75)
    write_text(given.output.with_suffix(".md"), page(table))


if __name__ == "__main__":
    main()
