"""A panel of one's own: one function, on the page, in the Markdown and among the figures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import compared
import pytest

import comparison as comparison_package
from comparison.say import Cell, Drawing, Html, Table, figure_settings, new_figure, registry, write_report
from comparison.say.data import read_report_data
from comparison.say.writing import read_panels
from structured_init import StructuredInitError

VALUES = {"default": {0: 0.8, 1: 0.82}, "sincos": {0: 0.9, 1: 0.91}}

PAGE = (Path(comparison_package.__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"## A panel of the report\n.*?```python\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def panels():
    """What a test registers is gone after it."""
    kept = list(registry.PANELS)
    yield registry.PANELS
    registry.PANELS[:] = kept


def test_the_documented_panel_and_further_ones_are_on_the_page_in_the_markdown_and_among_the_figures(
    comparison, panels
):
    assert len(EXAMPLE.splitlines()) < 30
    for _ in range(2):  # the same function again replaces its panel
        exec(compile(EXAMPLE, "example", "exec"), {"__name__": "example"})

    @registry.register_panel("Mine & yours")
    def mine(data):
        return ["1 < 2", Table(["a"], [[Cell("<i>")]]), Html("<b>of one's own</b>")]

    @registry.register_panel("A frame")
    def frame(data):
        means = data.results.groupby("arm", sort=False)[["test/accuracy", "steps"]].mean().assign(nothing=math.nan)
        counted = means.reset_index(drop=True)[["steps"]]
        return [means, counted]

    @registry.register_panel("Nothing")
    def nothing(data):
        return None

    @registry.register_panel("Broken", after="result")
    def broken(data):
        raise StructuredInitError("there is no 'file'")

    folder = comparison(VALUES, pieces=("attention",))

    page, text, *_ = write_report(folder)
    html, markdown = page.read_text(), text.read_text()
    assert [panel.name for panel in panels].count("seconds") == 1
    seconds, attention = (html.index(f'<section id="{name}">') for name in ("seconds", "attention"))
    assert html.index('<section id="curves">') < seconds < attention
    assert '<a href="#seconds">Seconds per run</a>' in html
    assert html[seconds:attention].count('<img alt="seconds per run" src="data:image/png;base64,') == 1
    assert "Means over seeds, on the machine named under Runs." in html[seconds:attention]
    assert "## Seconds per run\n\nMeans over seeds" in markdown
    assert "![seconds per run](figures/seconds_1.png)" in markdown
    assert (folder / "figures" / "seconds_1.svg").is_file()
    head = "| arm | test/accuracy | steps | nothing |\n| --- | --- | --- | --- |\n"
    assert f"{head}| default | 0.810 | 40.0 |  |" in markdown
    assert "\n\n| steps |\n" in markdown
    assert html[html.index('<section id="frame">') :].count('<i class="mark"') == 2  # each arm has its colour
    for shown in ("<b>of one's own</b>", "<h2>Mine &amp; yours</h2>", "<p>1 &lt; 2</p>", "&lt;i&gt;"):
        assert shown in html
    assert 'id="nothing"' not in html
    assert "Not shown: there is no &#39;file&#39;." in html
    assert '<section id="runs">' in html


def test_the_built_in_panels_are_registered_the_same_way(panels):
    assert [panel.name for panel in panels] == [
        *("result", "grid", "curves", "attention", "learning_rates", "initializations", "runs"),
    ]
    documented = re.search(r"`after=` takes(.*?); without it", PAGE, re.DOTALL)[1]
    for text in (
        documented,
        registry.register_panel.__doc__.partition("A report has")[2].partition(", in this order")[0],
    ):
        assert re.findall(r"`(\w+)`", text) == [panel.name for panel in panels]


def test_mistakes_are_one_line(comparison, panels):
    with pytest.raises(StructuredInitError, match="there is no panel 'curve' to come after: did you mean 'curves'"):
        registry.register_panel("x", after="curve")(lambda data: None)

    panels[:] = []

    @registry.register_panel("Twice")
    def twice(data):
        with figure_settings():
            return [Drawing(new_figure(1, 1), "same", "one"), Drawing(new_figure(1, 1), "same", "two")]

    data = read_report_data(comparison(VALUES, pieces=()))
    with pytest.raises(StructuredInitError, match="two figures are called 'same'"):
        read_panels(data)
    for returned in ([3], 3):
        registry.register_panel("Odd")(lambda data, returned=returned: returned)
        with pytest.raises(StructuredInitError, match="'<lambda>' returned int: give str, Table, a DataFrame, a"):
            read_panels(data)
        panels[:] = []


def test_settings_that_say_nothing_are_not_shown(comparison):
    known = {"model.network": "vit", "model.weight_decay": 0.0, "data.seed": None, "model.compile": False}
    text = compared.report_text(comparison(VALUES, pieces=(), configuration=known), "runs")
    shown = [name for name in known if f"| {name} |" in text]
    assert shown == ["model.network", "model.weight_decay"]
