"""Which figures a training run gets, and who else is shown them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import Logger
from torch import Tensor

from callbacks.figures import depth_figure, map_figure, profile_figure, save_figure, token_figure, zoom_figure
from structured_init.analysis import offset_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = dict[str, tuple["Figure", Path]]


def draw(folder: Path, maps: Mapping[str, Mapping[str, Tensor]], records: Mapping[str, Mapping[str, Any]]) -> Drawn:
    """Draw and save maps, their corner, offset profiles, statistics over depth, and one text with its tokens.

    Args:
        folder: where the PNG files go.
        maps: moment → layer → maps (B, H, N, N); layers of cross-attention are left out.
        records: what is known of every capture; see ``AttentionMapCallback.records``.

    Returns:
        Name → (figure, path).
    """
    captions = {moment: _caption(moment, records[moment]) for moment in records}
    square = {
        moment: {name: layer for name, layer in layers.items() if layer.shape[-1] == layer.shape[-2]}
        for moment, layers in maps.items()
    }
    square = {moment: layers for moment, layers in square.items() if layers}
    if not square:
        return {}
    places = records["after"]["layers"]
    mean = {
        captions[moment]: {n: layer.mean(dim=0) for n, layer in layers.items()} for moment, layers in square.items()
    }
    statistics = {captions[moment]: record["statistics"] for moment, record in records.items() if record["statistics"]}
    figures = {"maps": map_figure(mean)} | ({"statistics": depth_figure(statistics)} if statistics else {})
    on_grid = {
        moment: {n: layer for n, layer in layers.items() if n in places and places[n]["grid"]}
        for moment, layers in square.items()
    }
    if all(on_grid.values()):
        figures["offset_profile"] = profile_figure(
            {captions[moment]: _profiles(layers, places) for moment, layers in on_grid.items()}
        )
        figures["zoom"] = _zoom({captions[moment]: layers for moment, layers in on_grid.items()}, places)
    if records["after"].get("tokens"):
        first = {captions[m]: {n: layer[0] for n, layer in layers.items()} for m, layers in square.items()}
        figures["tokens"] = token_figure(first, records["after"]["tokens"])
    drawn = {name: (figure, folder / f"{name}.png") for name, figure in figures.items()}
    for figure, path in drawn.values():
        save_figure(figure, path)
    return drawn


def send(loggers: Iterable[Logger], drawn: Drawn, step: int, section: str = "attention") -> None:
    """Show the figures to TensorBoard and W&B; Lightning has no common way to log an image."""
    for logger in loggers:
        writer = getattr(logger, "experiment", None)
        for name, (figure, path) in drawn.items():
            if hasattr(logger, "log_image"):
                logger.log_image(key=f"{section}/{name}", images=[str(path)], step=step)
            elif hasattr(writer, "add_figure"):
                writer.add_figure(f"{section}/{name}", figure, global_step=step)


def _caption(moment: str, record: Mapping[str, Any]) -> str:
    if moment == "before":
        return "before training"
    return f"after training ({record['step']} steps)" if moment == "after" else moment.replace("_", " ")


def _profiles(layers: Mapping[str, Tensor], places: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    return {
        name: offset_profile(layer, places[name]["grid"], places[name]["prefix_tokens"])
        for name, layer in layers.items()
    }


def _zoom(maps: Mapping[str, Mapping[str, Tensor]], places: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the corner of all layers that have the first layer's grid."""
    first = next(iter(next(iter(maps.values()))))
    place = (places[first]["grid"], places[first]["prefix_tokens"])
    alike = {
        moment: {
            n: m.mean(dim=0) for n, m in layers.items() if (places[n]["grid"], places[n]["prefix_tokens"]) == place
        }
        for moment, layers in maps.items()
    }
    alike = {moment: layers for moment, layers in alike.items() if layers}
    return zoom_figure(alike, columns=place[0][1], prefix_tokens=place[1])
