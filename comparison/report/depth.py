"""Statistics of every layer, before and after training, as small figures over depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from comparison.report.data import MOMENTS, Place
from comparison.report.theme import FAINT, Style, figure_settings, new_figure
from comparison.results.folder import Run, read_json
from structured_init.analysis import HEAD_SCORES, STATISTICS, structure_left
from structured_init.analysis.statistics import is_causal
from structured_init.util.files import read_tensors
from structured_init.util.names import short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SEEDS = 5  # whose maps are read, for what their statistics do not say
SHOWN = (
    "mean_distance",
    "normalised_entropy",
    "diagonal_mass",
    "impulse_mass",
    "effective_rank",
    "far_mass",
    *HEAD_SCORES,
)
TITLES: dict[str, str] = {
    **STATISTICS,
    **{name: f"{words.partition(':')[0]}, best head" for name, words in HEAD_SCORES.items()},
    "normalised_entropy": "entropy of a row, as a share of log N",
    "diagonal_mass": "diagonal mass: attention to itself",
    "impulse_mass": "impulse mass: attention on the best offset",
    "structure_left": "structure left: cosine beyond uniform attention",
    "query_key_diagonal": "$W_q W_k^\\top$: mean diagonal",
    "query_key_off_diagonal_std": "$W_q W_k^\\top$: spread off the diagonal",
    "value_output_diagonal": "$W_v W_o$: mean diagonal",
    "value_output_off_diagonal_std": "$W_v W_o$: spread off the diagonal",
}
Depth = dict[str, dict[Place, np.ndarray]]  # statistic → of an arm and a moment → values over layers


def attention_statistics(runs: Iterable[Run]) -> tuple[list[str], Depth]:
    """Return the names of the layers and their statistics, averaged over heads and over the runs of an arm.

    Of the scores of circuits, for which one head is enough, it is the best head of every layer. A layer that some run
    does not have is NaN there.
    """
    runs = list(runs)
    few = set(sorted({run.seed for run in runs})[:MOST_SEEDS])
    found = [
        ((run.arm, moment), of_layers)
        for run in runs
        if (path := run.folder / "attention" / "statistics.json").is_file()
        for moment, of_layers in _with_structure_left(run.folder, read_json(path), run.seed in few).items()
    ]
    layers = list(layer_names(of_layers for _, of_layers in found))
    gathered: dict[str, dict[Place, list[np.ndarray]]] = {}
    for place, of_layers in found:
        for name in next(iter(of_layers.values())):
            of = np.max if name in HEAD_SCORES else np.mean  # one head of a circuit is enough
            gathered.setdefault(name, {}).setdefault(place, []).append(over_layers(of_layers, name, layers, of))
    return layers, {
        name: {place: np.mean(values, axis=0) for place, values in places.items()} for name, places in gathered.items()
    }


def layer_names(places: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return name → short name of every layer that an arm has at some moment: one may have more than another."""
    names = list(dict.fromkeys(name for place in sorted(places, key=len, reverse=True) for name in place))
    return dict(zip(names, short_names(names), strict=True))


def depth_figure(
    name: str, values: Mapping[Place, np.ndarray], styles: Mapping[str, Style], layers: list[str]
) -> Figure:
    """Draw one statistic over depth: before on the left, after on the right, on one scale."""
    moments = [moment for moment in MOMENTS if any(moment == known for _, known in values)]
    with figure_settings():
        arms = list(dict.fromkeys(arm for arm, _ in values))
        beside = max(1, min(len(arms), int(3.5 / (0.45 + 0.06 * max(map(len, arms))))))  # names in a row of the legend
        shown = range(0, len(layers), -(-len(layers) // 8))
        longest = 0.062 * max(len(layers[place]) for place in shown)  # inches
        down = longest if longest * len(shown) > 2.7 / len(moments) else 0.0  # names that are turned
        figure = new_figure(3.5, 2.05 + 0.16 * math.ceil(len(arms) / beside) + down)
        axes = figure.subplots(1, len(moments), sharey=True, squeeze=False)[0]
        for (arm, moment), of_layers in values.items():
            line = {"color": styles[arm].paper, "linestyle": styles[arm].dash, "linewidth": 1.4}
            axis = axes[moments.index(moment)]
            axis.plot(range(len(layers)), of_layers, marker="o", markersize=2.3, **line)
        for axis, moment in zip(axes, moments, strict=True):
            axis.set_xticks(shown, [layers[place] for place in shown], rotation=90 if down else 0)
            axis.grid(axis="x", visible=False)
            axis.set_xlabel("layer" if name == "structure_left" else f"layer, {moment} training")
        known = np.concatenate([each[np.isfinite(each)] for each in values.values()])
        lowest, highest = float(known.min(initial=0.0)), float(known.max(initial=0.0))
        room = 0.06 * (highest - lowest) or 1.0
        axes[0].set_ylim(lowest - room, highest + room)
        if lowest < 0:
            for axis in axes:
                axis.axhline(0, color=FAINT, linewidth=0.7)
        lines = [
            axes[0].plot([], [], color=styles[arm].paper, linestyle=styles[arm].dash, linewidth=1.4)[0] for arm in arms
        ]
        place = {"loc": "outside lower center", "ncols": beside, "handlelength": 1.5, "fontsize": 7, "frameon": False}
        figure.legend(lines, arms, **place)
        figure.suptitle(TITLES.get(name, name), x=0.01, ha="left", fontsize=8.5, parse_math=name in TITLES)
    return figure


def over_layers(
    of_layers: Mapping[str, Mapping[str, Any]], name: str, layers: Iterable[str], of: Callable = np.mean
) -> np.ndarray:
    """Return a statistic of each layer, over its heads; NaN of a layer that is not there."""
    return np.array([over_heads(of_layers.get(layer, {}).get(name, ()), of) for layer in layers])


def over_heads(values: Any, of: Callable[[np.ndarray], Any] = np.mean) -> float:
    """Return the mean, or what is named, of the heads that have a number (null in JSON is nan); NaN where none has."""
    numbers = np.atleast_1d(np.array(values, dtype=float))
    numbers = numbers[np.isfinite(numbers)]
    return float(of(numbers)) if len(numbers) else np.nan


def _with_structure_left(
    folder: Path, moments: Mapping[str, Mapping[str, Mapping[str, Any]]], with_maps: bool
) -> dict[str, dict[str, Any]]:
    """Return statistics before and after, ``with_maps`` also what training leaves of the structure."""
    found: dict[str, dict[str, Any]] = {
        moment: {layer: {name: values[name] for name in SHOWN if name in values} for layer, values in of_layers.items()}
        for moment, of_layers in moments.items()
        if moment in MOMENTS and of_layers
    }
    files = {moment: folder / "attention" / f"{moment}.safetensors" for moment in found}
    if with_maps and len(files) == len(MOMENTS) and all(file.is_file() for file in files.values()):
        before, after = (read_tensors(files[moment]) for moment in MOMENTS)
        layers = read_json(folder / "attention" / "meta.json")["captures"]["after"]["layers"]
        for name, values in found["after"].items():
            if name in before and before[name].shape == after[name].shape:
                causal = is_causal(before[name]) and is_causal(after[name])
                left = structure_left(before[name], after[name], layers[name]["prefix_tokens"], causal)
                values["structure_left"] = torch.nan_to_num(left).tolist()
    for moment, of_layers in found.items():  # those that every layer has
        names = [n for n in next(iter(of_layers.values())) if all(n in values for values in of_layers.values())]
        found[moment] = {layer: {name: values[name] for name in names} for layer, values in of_layers.items()}
    return found
