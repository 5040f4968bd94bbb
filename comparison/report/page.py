"""The page: what the template is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from comparison.report import accounts, drawn, theme, weights, words
from comparison.report.material import Material
from comparison.report.similarity import Similarity
from comparison.results.tables import headline_table

TEMPLATES = Path(__file__).with_name("templates")
LIGHT = {
    **{"page": "#fcfcfa", "ink": "#20262d", "faint": "#626b76", "rule": "#e4e6e8", "strong": "#c9ced4"},
    **{"chosen": "#eceef0", "link": "#0a5f9e", "warn": "#cc5500"},
}
DARK = {
    **{"page": "#14171b", "ink": "#e7eaee", "faint": "#99a3ae", "rule": "#2a3037", "strong": "#414a54"},
    **{"chosen": "#272d34", "link": "#7cc0f5", "warn": "#f5935a"},
}
READING = (
    "± is the half width of a 95 % Student t interval over seeds; differences are taken within a seed, whose runs "
    "share data order, augmentation and dropout. Final values, not best ones; the test split was read once. Bold: the "
    "interval excludes zero. Grey: it includes zero, or has no width."
)


def render(material: Material, sheet: drawn.Sheet) -> str:
    """Return the page, with every figure drawn; those for a paper are written on the way.

    Args:
        material: of the comparison.
        sheet: where figures are drawn.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    css, js = ((TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    template = environment.get_template("report.html.j2")
    return template.render(
        css=css, js=js, light=_variables(dark=False), dark=_variables(dark=True), **_context(material, sheet)
    )


def colors(material: Material) -> dict[str, str]:
    """Return arm → its CSS colour."""
    return {arm: look.variable for arm, look in material.looks.items()}


def _context(material: Material, sheet: drawn.Sheet) -> dict[str, Any]:
    look = colors(material)
    differences = drawn.differences(material, sheet)
    curves, choices = drawn.curves(material, sheet)
    depth = drawn.statistics(material, sheet)
    pickers = [
        _picker(material, "attention", "Attention, before and after", weights.attention(material, sheet)),
        _picker(material, "products", "Weight products, before and after", weights.products(material, sheet)),
    ]
    similar = weights.representations(material, sheet)
    places = [
        {
            "name": name,
            "findings": sentences,
            "table": headline_table(found).html(look, "stacked") if found.arms else "",
            "figures": [drawing.svg for drawing in differences.get(found.point, [])],
        }
        for (name, sentences), found in zip(words.all_findings(material), material.effects, strict=True)
    ]
    rates = [(name, table.html(look)) for name, table in accounts.rate_tables(material)]
    changed, unfinished = accounts.started(material), accounts.unfinished_table(material)
    surroundings = accounts.surroundings_table(material)
    context: dict[str, Any] = {
        "title": words.title(material),
        "lead": words.lead(material),
        "state": accounts.state(material),
        "arms": [{"name": arm, "color": look[arm]} for arm in material.manifest["arms"]],
        "places": places,
        "reading": READING,
        "rates": rates,
        "curves": [{"choice": choice, "svg": drawing.svg} for choice, drawing in curves],
        "curve_choices": choices,
        "curve_note": curve_note(material),
        "steps": [(name, table.html(look), note) for name, table, note in accounts.step_tables(material)],
        "pickers": [picker for picker in pickers if picker],
        "depth": [drawing.svg for drawing in depth],
        "depth_text": "Each line is the mean over heads and seeds; left before training, right after, on one scale.",
        "similarity": _similar(material, similar),
        "changed": changed,
        "run_tables": [("Without a result", unfinished.html(look))] if unfinished else [],
        "command": accounts.command(material.manifest.get("command", "")),
        "surroundings": surroundings.html(kind="tight") if surroundings else "",
        "provenance": accounts.provenance(material),
    }
    sections = [
        ("result", "Result", True),
        ("rates", "Learning rates", rates),
        ("curves", "Curves", curves),
        ("steps", "Steps", context["steps"]),
        *((picker["name"], picker["name"].capitalize(), True) for picker in context["pickers"]),
        ("layers", "Layers", depth),
        ("similarity", "Similarity", similar),
        ("starts", "Starts", changed),
        ("runs", "Runs", True),
    ]
    return {**context, "contents": [(name, text) for name, text, there in sections if there]}


def curve_note(material: Material) -> str:
    """Return how the learning curves are made."""
    few = (
        " With one or two seeds there is no band; thin lines are seeds." if len(material.manifest["seeds"]) < 3 else ""
    )
    return (
        "Lines are means over the complete runs of an arm, bands the pointwise 95 % t interval of that mean (not of a "
        f"difference: pairing makes differences narrower than bands suggest).{few}"
    )


def _picker(material: Material, name: str, title: str, shown: weights.Shown | None) -> dict[str, Any] | None:
    if shown is None:
        return None
    texts = {
        "attention": "Each map averages the probe’s samples: rows are queries, columns are keys. “By offset” averages "
        "over all pairs of patches, or tokens, at the same offset, the query in the centre: the convolution that a "
        "head resembles.",
        "products": Markup("<i>W<sub>q</sub>W<sub>k</sub></i><sup>⊤</sup> decides who looks at whom, ")
        + Markup("<i>W<sub>v</sub>W<sub>o</sub></i> what is passed on. The start was built again from ")
        + "each run’s configuration and seed, and checked against its init report; after is its last checkpoint.",
    }
    return {
        "name": name,
        "title": title,
        "text": texts[name],
        "colors": json.dumps(colors(material)),
        "scale": shown.picker.scale,
        "palette": "magma squareroot",
        "note": shown.note,
        "data": shown.picker.to_json(),
        "figures": [drawing.svg for drawing in shown.drawings],
    }


def _similar(material: Material, found: Similarity | None) -> dict[str, Any] | None:
    if found is None:
        return None
    look, pictures = colors(material), found.pictures()

    def caption(i: int, j: int) -> str:
        moments = ("before", "after") if i == j else ("before", "before") if i < j else ("after", "after")
        cell = found.cells[i][j]
        mean = "" if cell is None else f": mean {cell.mean():.2f}"
        return f"{found.arms[i]} {moments[0]}, {found.arms[j]} {moments[1]}{mean}"

    rows = [
        [{"picture": picture, "title": caption(i, j)} for j, picture in enumerate(row)]
        for i, row in enumerate(pictures)
    ]
    seeds = f"mean over {words.count(len(found.seeds), 'seed')}"
    return {
        "text": "Every small square compares all layers of one start with all layers of another, the first layer at "
        "the lower left. Above the diagonal: both before training. Below: both after. On the diagonal: a start before "
        "training (rows) with itself after (columns). Choose one to see it large.",
        "arms": [{"name": arm, "color": look[arm]} for arm in found.arms],
        "rows": rows,
        "note": f"Linear CKA with the unbiased minibatch estimator on the same validation samples, {seeds}, "
        "paired within a seed.",
        "data": found.to_json(),
    }


def _variables(dark: bool) -> str:
    named = DARK if dark else LIGHT
    return " ".join(f"--{name}: {value};" for name, value in named.items()) + " " + theme.variables(dark)
