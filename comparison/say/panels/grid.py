"""The means of all arms over the places of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from comparison.contrasts.place import PlaceResult
from comparison.say.data import ReportData
from comparison.say.registry import register_panel
from comparison.say.theme import Drawing, Style, figure_settings, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = "Means at the places of the grid; bars are 95 % intervals of a mean, not of a difference"


@register_panel("Over the grid", after="result")
def grid(data: ReportData) -> Drawing | None:
    """Return the means at all places; None where a single one has runs."""
    known = [each for each in data.places if each.arms]
    return Drawing(places_figure(known, data.styles), "places", PLACES) if len(known) > 1 else None


def places_figure(found: Sequence[PlaceResult], styles: dict[str, Style]) -> Figure:
    """Draw the mean of every arm at every place, equally far apart; places of numbers go by size, joined by lines."""
    ordered, is_joined = list(found), False
    with suppress(ValueError):
        ordered = sorted(found, key=lambda each: [float(value) for _, value in each.point])
        is_joined = True
    with figure_settings():
        figure = new_figure(6.6, 2.9)
        axis = figure.subplots()
        for name, style in styles.items():
            places, means, errors = [], [], []
            for place, each in enumerate(ordered):
                value = next((arm.value for arm in each.arms if arm.name == name and arm.value), None)
                if value is not None:
                    places.append(place)
                    means.append(value.mean)
                    errors.append((value.mean - value.low, value.high - value.mean) if value.is_known else (0.0, 0.0))
            if means:
                dash = style.dash if is_joined else "none"
                look = {"color": style.paper, "linestyle": dash, "marker": "o", "markersize": 4, "elinewidth": 1}
                axis.errorbar(places, means, yerr=list(zip(*errors, strict=True)), label=name, **look)
        axis.set_xticks(range(len(ordered)), ["\n".join(value for _, value in each.point) for each in ordered])
        axis.set_xlabel(", ".join(key.rpartition(".")[2] for key, _ in ordered[0].point))
        axis.set_title(ordered[0].metric.label)
        figure.legend(loc="outside right upper")
    return figure
