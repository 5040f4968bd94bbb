"""A panel of one's own: one function, on the page, in the Markdown and among the figures."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import compared
import pytest

import comparison as comparison_package
from comparison.report import Cell, Drawing, Html, Table, figure_settings, new_figure, registry, write_report
from comparison.report.data import read_report_data
from comparison.report.panels.runs import runs
from comparison.report.writing import Head, latex, read_panels
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
        return [means, means.rename_axis(None)[["steps"]], counted[counted["steps"] > 0]]

    @registry.register_panel("Nothing")
    def nothing(data):
        return None

    @registry.register_panel("Broken", after="result")
    def broken(data):
        raise StructuredInitError("there is no 'file'")

    panels[:] = [panel for panel in panels if panel.name != "curves"]  # its figures take seconds
    folder = comparison(VALUES, pieces=())
    page, text, *_ = write_report(folder)
    html, markdown = page.read_text(), text.read_text()
    assert [panel.name for panel in panels].count("seconds") == 1
    seconds, steps = (html.index(f'<section id="{name}">') for name in ("seconds", "steps"))
    assert seconds < steps
    assert '<a href="#seconds">Seconds per run</a>' in html
    assert html[seconds:steps].count("<svg") == 1
    assert "var(--arm-1)" in html[seconds:steps]
    assert "Means over seeds, on the machine named under Runs." in html[seconds:steps]
    assert "## Seconds per run\n\nMeans over seeds" in markdown
    assert "![seconds per run](figures/seconds_1.png)" in markdown
    assert (folder / "figures" / "seconds_1.svg").is_file()
    head = "| arm | test/accuracy | steps | nothing |\n| --- | --- | --- | --- |\n"
    assert f"{head}| default | 0.810 | 40.0 |  |" in markdown
    assert "\n\n| index | steps |\n" in markdown
    assert "\n\n| steps |\n" in markdown
    assert html[html.index('<section id="frame">') :].count('<i class="mark"') == 2  # each arm has its colour
    for shown in ("<b>of one's own</b>", "<h2>Mine &amp; yours</h2>", "<p>1 &lt; 2</p>", "&lt;i&gt;"):
        assert shown in html
    assert 'id="nothing"' not in html
    assert "Not shown: there is no &#39;file&#39;." in html
    assert '<section id="runs">' in html


def test_the_built_in_panels_are_registered_the_same_way(panels):
    assert [panel.name for panel in panels] == [
        *("result", "grid", "power", "learning_rates", "curves", "steps", "attention"),
        *("weight_products", "layers", "similarity", "initializations", "runs"),
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
    with pytest.raises(StructuredInitError, match="there is a panel 'runs' already"):
        registry.register_panel("x", name="runs")(lambda data: None)

    panels[:] = []

    @registry.register_panel("Twice")
    def twice(data):
        with figure_settings():
            return [Drawing(new_figure(1, 1), "same", "one"), Drawing(new_figure(1, 1), "same", "two")]

    data = read_report_data(comparison(VALUES, pieces=()))
    with pytest.raises(StructuredInitError, match="two figures of the report are called 'same'"):
        read_panels(data)
    for returned in ([3], 3):
        registry.register_panel("Odd", name="odd")(lambda data, returned=returned: returned)
        with pytest.raises(StructuredInitError, match="'odd' returned int: give str, Table, a DataFrame, a"):
            read_panels(data)
        panels[:] = []


KNOWN = {"model.network": "vit", "model.optimizer.lr": 0.001, "model.weight_decay": 0.0, "data.seed": None}
KNOWN |= {"trainer.limit_test_batches": 4.0, "trainer.max_epochs": 3, "model.compile": False}


@pytest.mark.parametrize(
    ("changes", "shown", "said"),
    [
        ({}, {"model.network": "vit", "model.optimizer.lr": 0.001, "model.weight_decay": 0.0}, True),
        ({"learning_rates": [0.001, 0.01]}, {"model.network": "vit", "model.weight_decay": 0.0}, False),
        (
            {"grid": {"model.init_args.optimizer.init_args.lr": [0.1, 0.2]}},
            {"model.network": "vit", "model.weight_decay": 0.0},
            False,
        ),
        ({"grid": {"experiment": ["a", "b"]}}, {}, False),
        (
            {"arms": {"mine": {"changes": {"model.network": "other"}}}},
            {"model.optimizer.lr": 0.001, "model.weight_decay": 0.0},
            True,
        ),
    ],
)
def test_settings_are_those_that_nothing_changes(comparison, changes, shown, said):
    data = read_report_data(comparison(VALUES, pieces=()))
    given = {"configuration": KNOWN, "learning_rates": [], "grid": {}, "arms": {}}
    data = replace(data, manifest={**data.manifest, **given, **changes})
    text = "\n".join(str(getattr(piece, "markdown", piece)) for piece in runs(data))
    for name in ("model.network", "model.optimizer.lr", "model.weight_decay"):
        assert (f"{name} | {shown.get(name)}" in text) == (name in shown)
    assert "data.seed" not in text
    assert "model.compile" not in text
    assert ("trainer.limit_test_batches | 4.0" in text) == bool(shown)
    assert ("No learning rate was searched: all arms have 0.001." in text) == said


@pytest.mark.parametrize("limits", [(20, 20), (1, 1.0)])
def test_of_whole_configurations_what_they_share_and_what_tells_them_apart_is_shown(comparison, limits):
    folder = comparison(VALUES, pieces=(), grid={"context": ["short", "long"]}, leave_out=[("default", 0)])
    shutil.rmtree(folder / "runs")
    for place, size, limit in (("short", 64, limits[0]), ("long_100%", 256, limits[1])):
        for seed, arm in product(range(3), VALUES):
            run = folder / "runs" / arm / place
            comparison.add_run(run, arm, seed, 0.5 + 0.1 * seed + 0.01 * len(arm), (), True, point={"context": place})
            model = "model: {class_path: Net, init_args: {width: 8, optimizer: {class_path: A, init_args: {lr: 0.01}}}}"
            text = f"{model}\ndata: {{init_args: {{block_size: {size}}}}}\ntrainer: {{limit_test_batches: {limit}}}\n"
            (run / f"seed_{seed}" / "experiment.yaml").write_text(text)
    manifest = json.loads((folder / "comparison.json").read_text())
    manifest["grid"] = {"context": ["short", "long_100%"]}
    (folder / "comparison.json").write_text(json.dumps(manifest))
    page = compared.report_text(folder, "result", "runs")
    assert "| model.class_path | Net |" in page
    assert "| model.width | 8 |" in page
    between = ["| setting of a place | context short | context long_100% |", "| --- | --- | --- |"]
    rows = ["| data.block_size | 64 | 256 |", *["| trainer.limit_test_batches | 1 | 1.0 |"] * (limits == (1, 1.0))]
    assert "\n".join([*between, *rows, ""]) in page.replace("|\n\n", "|\n")
    assert ("| trainer.limit_test_batches | 20 | 20 |" in page) is False
    assert "all arms have 0.01" in page
    assert "not best ones; a part of the test split was read once." in page
    tex = latex(Head("", "", [], ""), read_report_data(folder))
    assert r"\multicolumn{4}{l}{context short} \\" in tex
    assert r"\multicolumn{4}{l}{context long\_100\%} \\" in tex


@pytest.mark.parametrize(("metric", "logits"), [("accuracy", True), ("mcc", False)])
def test_the_page_says_that_means_of_shares_have_intervals_of_logits(tmp_path, metric, logits):
    rows = [f"{arm},{seed},{0.1 + 0.3 * place + 0.01 * seed}" for place, arm in enumerate("ab") for seed in range(3)]
    (tmp_path / "t.csv").write_text("\n".join([f"arm,seed,test/{metric}", *rows]))
    assert ("on the scale of logits" in compared.report_text(tmp_path / "t.csv", "result")) == logits
