"""The page, its Markdown, its tables and its figures: whole, readable, and without anything that is fetched or run."""

import html
import json
import re
import shlex
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import compared
import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from comparison.command import report
from comparison.runs.records import load_curves, load_results
from comparison.say import theme, write_report
from comparison.say.data import read_report_data
from comparison.say.panels.grid import places_figure
from comparison.say.theme import Drawing
from comparison.say.writing import latex, record
from structured_init import StructuredInitError

VOID = {"meta", "link", "br", "img", "input", "hr"}
CHROMIUM, DRIVER = (next(filter(None, map(shutil.which, names)), None) for names in (
    ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)
))  # fmt: skip


class Balanced(HTMLParser):
    """Check that every element is closed, and collect ids, figures and what the page would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched, self.figures = [], [], [], 0

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.ids += [known["id"]] if "id" in known else []
        self.fetched += [known[name] for name in ("src", "href") if name in known]
        self.figures += tag == "figure"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def written(shared_comparison, known_effects):
    """The files of a whole report, the page first, which stands in the folder of its comparison."""
    return write_report(shared_comparison(known_effects, controls={"mimetic": {"sincos": "same positions"}}))


def test_the_page_is_whole_fetches_and_runs_nothing_names_nothing_twice_and_is_short(written):
    parser = Balanced()
    text = written[0].read_text()
    parser.feed(text)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert all(address.startswith(("#", "data:")) for address in parser.fetched)
    assert not re.search(r"url\((?!#)|@import|https?://|<script", text)
    assert 3 <= parser.figures <= 12
    lines = [line for line in written[1].read_text().splitlines() if not line.startswith(("|", "#", "!["))]
    assert len(" ".join(lines).split()) <= 300


def test_the_page_begins_with_one_sentence_and_one_table_the_baseline_first(written):
    title, sentence, heading, table, *_ = written[1].read_text().split("\n\n")
    assert (title, heading) == ("# vit_digits", "## Result")
    assert sentence == "3 arms, 3 seeds: test accuracy, higher is better."
    assert table.splitlines()[2].startswith("| default | 3 |")


def test_every_section_is_in_the_menu_under_its_name_and_says_what_was_found(written, known_effects):
    text = written[0].read_text()
    menu = dict(re.findall(r'<a href="#(\w+)">([^<]+)</a>', text))
    assert [*menu] == ["result", "curves", "attention", "initializations", "runs"]
    for section, title in menu.items():
        assert re.search(rf'<section id="{section}">\s*<h2>{title}</h2>', text)
    differences = [100 * (known_effects["sincos"][seed] - known_effects["default"][seed]) for seed in range(3)]
    assert f"+{np.mean(differences):.1f}" in text
    assert "undecided" in text  # mimetic from its control, whose noise is twice the effect
    assert "abacus" in text
    assert "structured-init compare -c vit_digits" in text


def test_the_files_of_a_paper_stand_beside_it(written):
    folder = written[0].parent
    assert all(path.is_file() for path in written)
    assert {path.name for path in written[:4]} == {"report.html", "report.md", "results.csv", "results.json"}
    assert (folder / "figures" / "differences.png").read_bytes().startswith(b"\x89PNG")
    for path in (folder / "figures").glob("*.svg"):
        ET.parse(path)
    links = re.findall(r"\]\((figures/[^)]+)\)", (folder / "report.md").read_text())
    assert links
    assert all((folder / link).is_file() for link in links)
    assert not [path for path in folder.rglob(".*") if path.is_file()]  # no temporary file is left


def test_the_tables_in_latex_are_of_what_was_reached_beside_whom_and_how_soon(written):
    text = (written[0].parent / "results.tex").read_text()
    heads = [table.strip().splitlines()[3] for table in text.split(r"\bigskip")]
    assert [head.count("&") for head in heads] == [4, 2, 2]
    assert ["speed-up" in head for head in heads] == [False, False, True]


def test_results_json_has_the_numbers_of_the_table(written, known_effects):
    found = json.loads((written[0].parent / "results.json").read_text())
    (row,) = (each for each in found["contrasts"] if each["role"] == "same positions")
    assert (row["arm"], row["reference"], row["verdict"]) == ("mimetic", "sincos", "undecided")
    differences = [known_effects["mimetic"][seed] - known_effects["sincos"][seed] for seed in range(3)]
    assert row["mean"] == pytest.approx(100 * np.mean(differences))
    half = 4.302653 * np.std(differences, ddof=1) / np.sqrt(3)
    assert row["high"] == pytest.approx(100 * (np.mean(differences) + half), rel=1e-5)


def test_a_report_without_its_runs_still_gives_its_tables_and_is_not_written_over(written, tmp_path):
    folder = shutil.copytree(written[0].parent, tmp_path / "published")
    tables = load_results(folder), load_curves(folder)
    shutil.rmtree(folder / "runs")
    for before, after in zip(tables, (load_results(folder), load_curves(folder)), strict=True):
        pd.testing.assert_frame_equal(before, after, rtol=1e-14)
    with pytest.raises(StructuredInitError, match="holds a report without its runs"):
        write_report(folder)


def test_another_baseline_and_control_and_place(comparison, known_effects, tmp_path):
    folder = comparison(known_effects, pieces=())
    for file in folder.rglob("metrics.csv"):
        file.unlink()  # whose figures take seconds
    place = str(tmp_path / "elsewhere" / "page.html")
    words = [str(folder), "--baseline", "sincos", "--control", "default", "--output", place]
    report(words)
    written = [tmp_path / "elsewhere" / "page.html", tmp_path / "elsewhere" / "page.md"]
    assert "− sincos (paired)" in written[0].read_text()
    assert not (folder / "report.html").exists()
    made = f"structured-init report {shlex.join(words)}\n```"
    assert f"```\nstructured-init compare -c vit_digits\n{made}" in written[1].read_text()
    with pytest.raises(StructuredInitError, match="did you mean 'sincos'"):
        write_report(folder, baseline="sinco")


def test_an_arm_that_freezes_says_how_much_is_trained_and_what_was_noted(comparison, known_effects):
    folder = comparison(known_effects, pieces=())
    for run in (folder / "runs" / "sincos").glob("seed_*/"):
        report = json.loads((run / "init_report.json").read_text())
        counts = {"trainable_parameters": 21_578, "total_parameters": 42_570}
        notes = {"notes": {"network.a": "it ends here", "network.b": "and here"}}
        (run / "init_report.json").write_text(json.dumps(report | counts | notes))
    text = compared.report_text(folder, "initializations")
    said = "1 of 3 tensors, 6 of 18 numbers; 21,578 of 42,570 parameters are trained"
    assert text.count(f"| {said} | network.a: it ends here; network.b: and here |") == 1
    assert text.count("are trained") == 1  # the other arms train all, or are reports that do not say


def test_an_unfinished_comparison_says_what_is_missing(comparison, known_effects):
    fail = {("sincos", 2): "CUDA out of <memory>"}
    folder = comparison(known_effects, leave_out=[("mimetic", 1), ("mimetic", 2)], fail=fail, pieces=())
    text = compared.report_text(folder, "runs")
    assert "Not finished: 6 of 9 runs are complete." in text
    assert "| sincos | 2 | CUDA out of \\<memory> |" in text
    assert text.count("| not started |") == 2


def test_a_baseline_alone_is_reported(comparison):
    text = compared.report_text(comparison({"default": {0: 0.8}}, pieces=(), seconds=False), "result")
    assert "| default | 1 | 80.0 (no interval) | baseline |" in text


def test_nothing_at_all_is_reported_too(comparison, tmp_path):
    folder = comparison({"default": {0: 0.8}, "sincos": {0: 0.9}}, leave_out=[("default", 0), ("sincos", 0)])
    text = write_report(folder)[1].read_text()
    assert "No complete run has test accuracy yet." in text
    assert "0 of 2 runs are complete." in text


def test_every_place_of_a_grid_has_a_table_and_its_means_are_drawn(comparison):
    folder = comparison({"default": {}, "sincos": {}}, grid={"data.init_args.fraction": ["0.1", "0.5"]}, seeds=[0, 1])
    for place, value in enumerate(("0.1", "0.5")):
        for arm, bonus in (("default", 0.0), ("sincos", 0.1 - 0.1 * place)):
            for seed in (0, 1):
                point = {"data.init_args.fraction": value}
                final = 0.5 + bonus + 0.01 * seed * (1 + bonus)
                comparison.add_run(folder / "runs" / arm / value, arm, seed, final, (), False, point=point)
    text = compared.report_text(folder, "result", "grid")
    for shown in ("### fraction 0.1", "### fraction 0.5", "differences_fraction_0.5.png", "places.png"):
        assert shown in text
    found = read_report_data(folder)
    (axis,) = places_figure(found.places[::-1], found.styles).axes  # numbers go by their size
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.1", "0.5"]
    assert axis.lines[0].get_ydata() == pytest.approx([50.5, 50.5])
    assert axis.lines[0].get_linestyle() == "-"
    bars = axis.collections[0].get_segments()
    assert all((one == other).all() for one, other in bars)  # two seeds
    assert "% fraction 0.5" in latex(found)


def test_what_an_arm_is_called_is_no_markdown_and_no_latex(tmp_path):
    """Read by another library; names stand in sentences and in tables."""
    arms = ["main", "w*2*h", "__init__", "B<script>", "a|b", "`c`", "~d~", "[e](f)", "&amp;", "√中", "g_h__i"]
    rows = [f'"{arm}",{seed},{place + seed**1.5 * (1 + place)}' for place, arm in enumerate(arms) for seed in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,loss", *rows]), encoding="utf-8")
    page = MarkdownIt("gfm-like", {"linkify": False}).render(compared.report_text(tmp_path / "t.csv", "result"))
    assert not re.search("<(em|strong|s|code|script|a)[ >]", page)
    assert {*map(html.escape, arms)} <= {*re.findall("<td[^>]*>([^<]*)</td>", page)}
    assert r"$\surd$中" in latex(read_report_data(tmp_path / "t.csv"))


def test_a_threshold_counts_runs_in_place_of_means(comparison):
    values = {"default": {0: 0.1, 1: 0.96, 2: 0.05}, "mimetic": {0: 0.97, 1: 0.98, 2: 0.99}}
    folder = comparison(values, pieces=())
    result = compared.report_text(folder, "result", success=0.95)
    assert "| mimetic | 3 of 3 (29 to 100 %) | 98.0 | undecided (adjusted p = 0.40) |" in result
    assert not [word for word in ("±", "speed-up") if word in result]
    numbers = record(read_report_data(folder, success=0.95))
    assert [arm["share"]["count"] for arm in numbers["successes"][0]["arms"]] == [1, 3]
    reach = numbers["places"][0]["arms"][1]["reach"]
    assert reach["first"] == []


def test_colours_are_distinct_per_arm():
    styles = theme.styles([f"arm {i}" for i in range(14)], "arm 0")
    assert len({(look.paper, str(look.dash)) for look in styles.values()}) == 14


@pytest.mark.parametrize(
    ("one", "other"),
    [("val/a", "val_a"), ("é" * 300, "é" * 299), ("\ud800", "_"), ("..", ".")],
)
def test_figures_have_names_that_files_can_have_and_that_stay_distinct(one, other):
    slugs = {Drawing(None, name, "").name for name in (one, other)}
    assert len(slugs) == 2
    assert all(re.fullmatch(r"[\w.-]+", slug) and len(slug.encode()) <= 100 for slug in slugs)
    assert Drawing(None, "curves_val_acc_by_step", "").name == "curves_val_acc_by_step"  # as in published reports


@pytest.fixture
def browser():
    """A headless Chromium that logs its console and its network."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and its driver (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), pytest.param(1280, "light", marks=pytest.mark.slow)])
def test_in_a_browser_it_is_readable(written, browser, width, scheme):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(written[0].resolve().as_uri())
    value = lambda script: browser.execute_script(f"return {script}")  # noqa: E731
    assert value("document.documentElement.scrollWidth") <= width  # no horizontal scroll of the page
    outside = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    # What is wider than the page scrolls in a box of its own.
    assert value(f"{outside}.filter(e => !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80))") == []
    # The table of the result does not: all of its differences are in sight.
    cells = "[...document.querySelectorAll('#result td.gain, #result td.open')].map(e => e.getBoundingClientRect())"
    assert value(f"{cells}.length") > 0
    assert value(f"{cells}.every(r => r.width > 0 && r.right <= innerWidth)")
    # The main number stands above the fold, the figures are loaded, and help opens.
    assert value("document.querySelector('#result td.gain').getBoundingClientRect().bottom") < 800
    figures = "[...document.querySelectorAll('figure img')]"
    assert value(f"Math.min(...{figures}.map(i => i.naturalWidth))") > 80
    assert value("document.querySelector('.help p').checkVisibility()") is False
    value("document.querySelector('.help summary').click()")
    assert value("document.querySelector('.help p').checkVisibility()") is True
    page, ink = (
        sum(int(part) for part in re.findall(r"\d+", value(f"getComputedStyle(document.body).{what}"))[:3])
        for what in ("backgroundColor", "color")
    )
    assert abs(page - ink) > 3 * 100
    assert (page > ink) is (scheme == "light")
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in sent if not url.startswith(("data:", "file:", "about:", "chrome"))] == []


HOSTILE = 'x"><img src=x onerror=document.title=1>'


@pytest.mark.slow
def test_no_name_is_markup_or_runs_in_the_page(tmp_path, browser):
    rows = [[arm, seed, at, 0.1 * at + seed] for arm in ("default", HOSTILE) for seed in range(3) for at in (1, 2)]
    table = pd.DataFrame(rows, columns=["arm", "seed", "step", f"val/{HOSTILE}"])
    source = tmp_path / (HOSTILE.replace("/", "") + ".csv")
    table.to_csv(source, index=False)
    page, *files = write_report(source, mode="max", output=tmp_path / "page.html")
    assert all(re.fullmatch(r"[\w.-]{1,104}", file.name) for file in files)
    browser.get(page.resolve().as_uri())
    found = browser.execute_script("return document.querySelectorAll('[onerror], script').length")
    assert found == 0
    assert browser.title == f"{source.stem}: a comparison"
    # What came in all the same would not run: the policy allows no script.
    added = "Object.assign(document.createElement('script'), {textContent: 'document.title = 1'})"
    browser.execute_script(f"document.body.append({added})")
    assert "Content Security Policy" in str(browser.get_log("browser"))
    assert browser.title == f"{source.stem}: a comparison"
