"""Which figures a report has: each for the page, and for a paper where it is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.report import depth, lines, theme, words
from comparison.report.material import Material
from comparison.results.effects import Metric, curves_by_seed
from comparison.results.records import Point, at_point, point_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CURVES = 48  # on the page: beyond it only the headline metric and the loss


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Attributes:
        name: of its files, and unlike any other on the page.
        text: what it shows, in a line.
        svg: for the page.
    """

    name: str
    text: str
    svg: str


class Sheet:
    """Draws figures for the page and keeps those for a paper.

    Args:
        folder: where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drawn: list[Drawing] = []
        self.written: list[Path] = []

    def add(self, figure: Figure, name: str, text: str, save: bool = True) -> Drawing:
        """Turn a figure into a drawing; with ``save`` it is written for a paper too."""
        theme.settle(figure)
        drawing = Drawing(name, text, theme.inline(figure, name, text))
        if save:
            self.written += theme.save(figure, self.folder, name)
            self.drawn.append(drawing)
        return drawing


def differences(material: Material, sheet: Sheet) -> dict[Point, list[Drawing]]:
    """Draw paired differences to the baseline and to the controls, at every place of the grid."""
    found: dict[Point, list[Drawing]] = {}
    for each in material.effects:
        for to in ("baseline", "control"):
            figure = lines.difference_figure(each, material.looks, to)
            if figure is not None:
                text = f"Paired differences in {each.metric.words} to the {to}{_at(material, each.point)}"
                drawing = sheet.add(figure, _name(f"differences_to_{to}", material, each.point), text)
                found.setdefault(each.point, []).append(drawing)
    return found


def curves(material: Material, sheet: Sheet) -> tuple[list[tuple[str, Drawing]], list[tuple[str, str, list]]]:
    """Draw learning curves.

    Returns:
        (choice in JSON, drawing) of every curve; and (key, name, [(value, text)]) of what is chosen from.
    """
    table = material.curves
    if not len(table):
        return [], []
    metrics = _metrics(material)
    axes = [axis for axis in lines.AXES if table[axis].notna().any()]
    if len(metrics) * len(axes) * len(material.points) > MOST_CURVES:
        metrics = [name for name in metrics if name in (material.metric.on_validation, "val/loss")] or metrics[:1]
    found = []
    for place in material.points:
        complete = {(run.arm, run.seed) for run in material.runs if run.result is not None and run.point == place}
        shown = lines.comparable(at_point(table[table["chosen"].astype(bool)], place), complete)
        for name in metrics:
            for axis in axes:
                by_arm = curves_by_seed(shown, name, axis)
                if not by_arm:
                    continue
                ordered = {arm: by_arm[arm] for arm in material.manifest["arms"] if arm in by_arm}
                metric = Metric(name, material.manifest["mode"])
                figure = lines.curve_figure(ordered, material.looks, metric, axis, material.manifest["baseline"])
                text = f"Learning curves: {metric.label} over {lines.AXES[axis]}{_at(material, place)}"
                file = _name(f"curves_{name.replace('/', '_')}_by_{axis}", material, place)
                wanted = name == material.metric.on_validation or (name == "val/loss" and axis == "step")
                drawing = sheet.add(figure, file, text, save=wanted)
                found.append((json.dumps([point_label(place), name, axis]), drawing))
    words = {"step": "steps", "samples": "samples", "seconds": "time"}
    choices = [
        ("point", "at", [(point_label(place), point_label(place) or "all") for place in material.points]),
        ("metric", "shown", [(name, name.replace("/", " ").replace("_", " ")) for name in metrics]),
        ("axis", "by", [(axis, words[axis]) for axis in axes]),
    ]
    return found, choices


def statistics(material: Material, sheet: Sheet) -> list[Drawing]:
    """Draw the statistics of attention over depth, before and after."""
    layers, values = depth.attention_statistics(material.complete)
    moments = " before and after training"
    order = [name for name in (*depth.SHOWN, "structure_left") if name in values]
    return [
        sheet.add(
            depth.depth_figure(name, _ordered(values[name], material), material.looks, short(layers)),
            f"layers_{name}",
            f"{words.plain(depth.TITLES.get(name, name))}, in every layer{'' if name == 'structure_left' else moments}",
        )
        for name in order
    ]


def short(names: list[str]) -> list[str]:
    """Return the parts of dotted names that differ: ``blocks.0.attn``, ``blocks.1.attn`` → ``0``, ``1``."""
    parts = [name.split(".") for name in names]
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return list(names)
    differing = [place for place, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    return [".".join(part[place] for place in differing) for part in parts]


def _ordered(values: dict, material: Material) -> dict:
    return {arm: values[arm] for arm in material.manifest["arms"] if arm in values}


def _metrics(material: Material) -> list[str]:
    """Return the metrics that have curves: the headline's first, validation before training."""
    headline = material.metric.on_validation
    names = sorted(set(material.curves["metric"]))
    return sorted(names, key=lambda name: (name != headline, not name.startswith("val/"), name))


def _at(material: Material, place: Point) -> str:
    return f" at {point_label(place)}" if len(material.points) > 1 else ""


def _name(name: str, material: Material, place: Point) -> str:
    """Return a file's name, with the place where there are several."""
    if len(material.points) < 2:
        return name
    label = "".join(c if c.isalnum() or c in ".-" else "_" for c in point_label(place).replace(", ", "_"))
    return f"{name}_{label}"
