import html
import json
import math
import re
import shlex
import shutil
import time
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import product

import compared
import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from comparison.report import theme, write_report
from comparison.report.data import read_report_data
from comparison.report.panels.curves import comparable, curves, mean_curve
from comparison.report.panels.grid import places_figure
from comparison.report.theme import Drawing
from comparison.report.writing import Head, latex, record
from comparison.results.records import load_curves, load_results
from structured_init import StructuredInitError

VOID = {"meta", "link", "br", "img", "input", "hr"}
CHROMIUM, DRIVER = (next(filter(None, map(shutil.which, names)), None) for names in (
    ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)
))  # fmt: skip


class Balanced(HTMLParser):
    """Check that every element is closed, and collect ids and what the page would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched = [], [], []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.ids += [known["id"]] if "id" in known else []
        self.fetched += [known[name] for name in ("src", "href", "xlink:href") if name in known]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def written(shared_comparison, known_effects):
    """The files of a whole report, the page first, which stands in the folder of its comparison."""
    return write_report(shared_comparison(known_effects, controls={"mimetic": {"sincos": "same positions"}}))


def test_the_page_is_whole_fetches_nothing_and_names_nothing_twice(written):
    page, *_ = written
    parser = Balanced()
    parser.feed(page.read_text())
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert all(address.startswith(("#", "data:")) for address in parser.fetched)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", page.read_text())


def test_every_section_is_there_and_says_what_was_found(written, known_effects):
    text = written[0].read_text()
    for section in ("result", "curves", "steps", "attention", "layers", "similarity", "initializations", "runs"):
        assert f'<section id="{section}">' in text
    differences = [100 * (known_effects["sincos"][seed] - known_effects["default"][seed]) for seed in range(3)]
    assert f"+{np.mean(differences):.1f}" in text
    assert "not told apart" in text.lower()  # mimetic from its control, whose noise is twice the effect
    assert "abacus" in text
    assert "structured-init compare -c vit_digits" in text


def test_the_files_of_a_paper_stand_beside_it(written):
    folder = written[0].parent
    assert all(path.is_file() for path in written)
    assert {path.name for path in written[:4]} == {"report.html", "report.md", "results.csv", "results.json"}
    assert (folder / "figures" / "differences_to_baseline.png").read_bytes().startswith(b"\x89PNG")
    for path in (folder / "figures").glob("*.svg"):
        assert "var(--" not in path.read_text()  # on paper colours are colours
        ET.parse(path)
    text = (folder / "report.md").read_text()
    links = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert links
    assert all((folder / link).is_file() for link in links)
    assert not [path for path in folder.rglob(".*") if path.is_file()]  # no temporary file is left


def test_the_table_in_latex_has_what_was_reached_and_how_soon_apart(written):
    text = (written[0].parent / "results.tex").read_text()
    result, soon = text.split("% how soon\n")
    assert "test accuracy" in result
    assert "speed-up" not in result
    assert "arm & " in soon.splitlines()[3]
    assert "steps to " in soon.splitlines()[3]
    assert soon.count(r"\begin{tabular}{lll}") == 1


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
    written = write_report(folder, baseline="sincos", controls="default", output=tmp_path / "elsewhere" / "page.html")
    assert written[0] == tmp_path / "elsewhere" / "page.html"
    assert (tmp_path / "elsewhere" / "page.md").is_file()
    assert "Difference to sincos" in written[0].read_text()
    assert not (folder / "report.html").exists()
    page = shlex.quote(str(written[0]))
    made = f"report {folder} --baseline sincos --control default --output {page}\n```"
    assert f"```\nstructured-init compare -c vit_digits\nstructured-init {made}" in written[1].read_text()
    with pytest.raises(StructuredInitError, match="did you mean 'sincos'"):
        write_report(folder, baseline="sinco")


def test_an_arm_that_freezes_says_how_much_is_trained(comparison, known_effects):
    folder = comparison(known_effects, pieces=())
    for run in (folder / "runs" / "sincos").glob("seed_*/"):
        report = json.loads((run / "init_report.json").read_text())
        report["entries"][0]["trainable"] = False
        counts = {"trainable_parameters": 21_578, "total_parameters": 42_570}
        notes = {"notes": {"network.a": "it ends here", "network.b": "and here."}}
        (run / "init_report.json").write_text(json.dumps(report | counts | notes))
    text = compared.report_text(folder, "initializations")
    line = "Set 1 of 3 tensors (6 of 18 numbers), 1 frozen. 21,578 of 42,570 parameters are trained."
    assert text.count(f"{line} Note on network.a: it ends here. Note on network.b: and here.\n") == 1
    assert text.count("are trained.") == 1  # the other arms train all, or are reports that do not say


@pytest.mark.parametrize(("seconds", "said"), [(1.2, "about 1 second."), (9.0, "8 to 9 s")])
def test_runs_that_take_equally_long_have_one_time(comparison, known_effects, seconds, said):
    folder = comparison(known_effects, pieces=())
    for number, file in enumerate(folder.rglob("result.json")):
        kept = {**json.loads(file.read_text()), "seconds": 8.0 if seconds > 8 and number else seconds}
        file.write_text(json.dumps(kept))
    assert f"A complete run took {said}" in compared.report_text(folder, "runs")


@pytest.mark.parametrize(
    ("slow", "drawn"), [("sincos/seed_?", True), ("default/seed_0", False)], ids=["arm", "session"]
)
def test_no_curve_is_drawn_over_time_where_it_is_the_machine_that_differs(comparison, known_effects, slow, drawn):
    folder = comparison(known_effects, pieces=())
    for file in folder.glob("runs/*/*/metrics.csv"):
        table = pd.read_csv(file).drop(columns="val/loss")
        factor = 2 if file in folder.glob(f"runs/{slow}/metrics.csv") else 1
        table.assign(seconds=factor * table["seconds"]).to_csv(file, index=False)
    text = compared.report_text(folder, "curves")
    said = "the seconds per step of arms differ up to 1.33 times, those of runs of one arm up to 2.00 times"
    assert (said in text, "by_seconds.png" in text) == (not drawn, drawn)


def test_an_unfinished_comparison_says_what_is_missing(comparison, known_effects):
    fail = {("sincos", 2): "CUDA out of <memory>"}
    folder = comparison(known_effects, leave_out=[("mimetic", 1), ("mimetic", 2)], fail=fail, pieces=())
    text = compared.report_text(folder, "runs")
    assert "**Not finished.** 6 of 9 runs are complete, 1 failed, 2 not started." in text
    assert "CUDA out of \\<memory>" in text


def test_attention_that_no_run_could_capture_is_said_with_its_reason(comparison, known_effects):
    folder = comparison(known_effects, pieces=())
    why = json.dumps({"attention": {"before": "no softmax could be followed"}})
    (folder / "runs" / "sincos" / "seed_1" / "missing.json").write_text(why)
    assert "Attention was not captured: no softmax could be followed." in compared.report_text(folder, "attention")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"default": {0: 0.8}}, "nothing to compare"),
        ({"default": {0: 0.8}, "sincos": {0: 0.9}}, "There is only one seed, so there is no interval"),
        ({"default": {0: 0.8}, "sincos": {1: 0.9}}, "nothing can be paired"),
    ],
)
def test_little_is_reported_as_little(comparison, values, said):
    assert said in compared.report_text(comparison(values, pieces=(), seconds=False), "result")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_page_explains_only_the_signs_that_stand_on_it(comparison, known_effects, seeds):
    values = {arm: {seed: of[seed] for seed in range(seeds)} for arm, of in known_effects.items()}
    text = compared.report_text(comparison(values, pieces=(), seconds=False), "result")
    assert [sign in text.split() for sign in ("±", "p:")] == [seeds == 3] * 2


@pytest.mark.parametrize(
    ("first", "said"),
    [(3, r"two pairs are too few: b\W"), (4, "only one pair,")],
)
def test_seeds_that_are_not_shared_are_told_from_seeds_that_are_missing(comparison, first, said):
    a, b, arms = range(5), range(first, first + 5), ("default", "a") if first == 3 else ("default",)
    values = {arm: {seed: 0.8 + 0.01 * (seed % 3) + 0.001 * seed * (arm == "a") for seed in a} for arm in arms}
    values["b"] = {seed: 0.7 - 0.01 * (seed % 2) for seed in b}
    assert re.search(said, compared.report_text(comparison(values, pieces=(), seconds=False), "result"))


def test_nothing_at_all_is_reported_too(comparison):
    folder = comparison({"default": {0: 0.8}, "sincos": {0: 0.9}}, leave_out=[("default", 0), ("sincos", 0)])
    assert "No complete run" in compared.report_text(folder, "result")


def test_an_unfinished_grid_is_told_by_its_place_with_most_runs(comparison):
    folder = comparison(
        {"default": {}, "sincos": {}, "mimetic": {}}, grid={"optim": ["adamw", "muon"]}, seeds=[0, 1, 2]
    )
    for arm, optimizer, seeds in (
        *(("default", "adamw", [0]), ("sincos", "adamw", [0]), ("default", "muon", [0, 1, 2])),
        *(("sincos", "muon", [0, 1, 2]), ("mimetic", "muon", [0])),
    ):
        for seed in seeds:
            run = folder / "runs" / arm / optimizer
            final = 0.5 + 0.1 * (arm == "sincos") + 0.01 * seed**2 * (1 + (arm == "sincos"))
            comparison.add_run(run, arm, seed, final, (), True, point={"optim": optimizer})
    (folder / "runs/mimetic/muon/seed_0/result.json").unlink()
    text = compared.report_text(folder, "result")
    assert "\n\nAt optim muon: sincos is better than default: +11.7 ± 5.2 points of test accuracy." in text
    assert text.index("At optim muon: ") < text.index("There is only one seed")


def test_every_place_of_a_grid_has_a_table_and_the_page_says_what_moves_the_means(comparison):
    folder = comparison({"default": {}, "sincos": {}}, grid={"data.init_args.fraction": ["0.1", "0.5"]}, seeds=[0, 1])
    for place, value in enumerate(("0.1", "0.5")):
        for arm, bonus in (("default", 0.0), ("sincos", 0.1 - 0.1 * place)):
            for seed in (0, 1):
                point = {"data.init_args.fraction": value}
                final = 0.5 + bonus + 0.01 * seed * (1 + bonus)
                comparison.add_run(folder / "runs" / arm / value, arm, seed, final, (), False, point=point)
    text = compared.report_text(folder, "result", "grid")
    for shown in ("### fraction 0.1", "### fraction 0.5", "differences_to_baseline_fraction_0.5.png", "places.png"):
        assert shown in text
    found = read_report_data(folder)
    (axis,) = places_figure(found.places[::-1], found.styles).axes  # numbers go by their size
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.1", "0.5"]
    assert axis.lines[0].get_ydata() == pytest.approx([50.5, 50.5])
    assert axis.lines[0].get_linestyle() == "-"
    assert all((one == other).all() for bars in axis.collections for one, other in bars.get_segments())  # two seeds
    # Means of 50.5 and 60.55 at one place, of 50.5 twice at the other; of two seeds intervals resample.
    said = r"accuracy % lie 5\.0\d? \(.*\) apart between places of the grid, and 5\.0\d? \(.*\) between initializations"
    assert re.search(said, text)
    # The middle half of 50, 51, 60 and 61.1; of four pairs all are better at 0.1, at 0.5 one and two are ties.
    row = next(line for line in text.splitlines() if line.startswith("| sincos | 55.5 ("))
    assert "| 75 % (" in row
    assert "figures/profiles.png" in text


def test_what_an_arm_is_called_is_no_markdown_and_no_latex(tmp_path):
    """Read by another library; names stand in sentences and in tables."""
    arms = ["main", "w*2*h", "__init__", "B<script>", "a|b", "`c`", "~d~", "[e](f)", "&amp;", "√中", "g_h__i"]
    rows = [f'"{arm}",{seed},{place + seed**1.5 * (1 + place)}' for place, arm in enumerate(arms) for seed in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["arm,seed,loss", *rows]), encoding="utf-8")
    page = MarkdownIt("gfm-like", {"linkify": False}).render(compared.report_text(tmp_path / "t.csv", "result"))
    assert not re.search("<(em|strong|s|code|script|a)[ >]", page)
    assert {*map(html.escape, arms)} <= {*re.findall("<td[^>]*>([^<]*)</td>", page)}
    assert r"$\surd$中" in latex(Head("", "", [], ""), read_report_data(tmp_path / "t.csv"))


def test_colours_on_the_page_are_variables_and_distinct_per_arm():
    styles = theme.styles([f"arm {i}" for i in range(14)], "arm 0")
    assert len({(look.paper, str(look.dash)) for look in styles.values()}) == 14
    figure = theme.new_figure(2, 1)
    with theme.figure_settings():
        axis = figure.subplots()
        axis.plot([0, 1], color=styles["arm 1"].paper)
        axis.set_title("words stay words")
    text = theme.inline(figure, "name", 'a "description"')
    assert "var(--arm-1)" in text
    assert styles["arm 1"].paper not in text
    assert ">words stay words<" in text
    assert all(name.startswith("name-") for name in re.findall(r'\sid="([^"]+)"', text))


def test_a_band_is_the_t_interval_at_every_evaluation_that_all_seeds_have():
    curves = [[(10, 1.0), (20, 4.0)], [(10, 2.0), (20, 4.0)], [(10, 3.0), (20, 7.0), (30, 9.0)]]
    places, mean, low, high = mean_curve(curves)
    assert list(places) == [10, 20]
    assert list(mean) == [2, 5]
    assert (high - low)[0] / 2 == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)


def test_a_mean_curve_stands_on_complete_runs_and_on_steps_that_all_of_them_logged():
    rows = [("a", 0, 10), ("a", 0, 20), ("a", 1, 20), ("a", 1, 30), ("a", 2, 10), ("b", 0, 10), ("b", 0, 20)]
    curves = pd.DataFrame([(*row, "val/loss") for row in rows], columns=["arm", "seed", "step", "metric"])
    kept = comparable(curves, {("a", 0), ("a", 1)})
    assert [tuple(row) for row in kept[["arm", "seed", "step"]].to_numpy()] == [
        *[("a", 0, 20), ("a", 1, 20)],
        *[("b", 0, 10), ("b", 0, 20)],
    ]
    assert len(comparable(curves.iloc[:0], set())) == 0


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


def open_page(browser, page):
    """`browser.get` alone returns now and then while the page is still loading, if it showed a place of that page."""
    from selenium.webdriver.support.wait import WebDriverWait

    address = page.resolve().as_uri()
    browser.get(address)
    loaded = "document.readyState === 'complete' && location.href"
    WebDriverWait(browser, 30).until(lambda _: value(browser, loaded) == address)


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (375, "dark"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1280, "light"), (1280, "dark"), (375, "light"))),
    ],
)
def test_in_a_browser_it_is_readable_and_its_pickers_work(written, browser, width, scheme):
    page, *_ = written
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    open_page(browser, page)
    check_readable(browser, width, scheme)
    check_curves(browser)
    check_attention(browser)
    check_similarity(browser)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert page.resolve().as_uri() in sent
    assert [url for url in sent if not url.startswith(("data:", "file:", "about:", "chrome"))] == []


HOSTILE = 'x"><img src=x onerror=document.title=1>'
TWISTED = HOSTILE + ' $\\foo$ % \\u id="y"'


def hostile_table(folder):
    """A table whose file, arm and metric are called like that, with curves."""
    path = folder / (HOSTILE.replace("/", "") + ".csv")
    rows = [[arm, seed, at, 0.1 * at + seed] for arm in ("default", HOSTILE) for seed in range(3) for at in (1, 2)]
    columns = ["arm", "seed", "step", f"val/{TWISTED}"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


def hostile_comparison(comparison, folder):
    """A comparison in which an arm, a key and a value of the grid, and the layers are called like that."""
    grid = {f"model.{HOSTILE}": ["1", HOSTILE]}
    folder = comparison({"default": {0: 0.5}, HOSTILE: {0: 0.6}}, grid=grid, leave_out=[("default", 0), (HOSTILE, 0)])
    for number, (arm, seed) in enumerate(product(("default", HOSTILE), range(3))):
        for place, final in (("1", 0.5), (HOSTILE, 0.6)):
            run = folder / "runs" / f"arm_{number}" / f"place_{len(place)}"
            point = {f"model.{HOSTILE}": place}
            comparison.add_run(run, arm, seed, final + 0.1 * seed, ("attention",), True, point=point)
    for path in folder.rglob("attention/*.json"):
        path.write_text(path.read_text().replace("network.blocks.0.attn", "<script>0"))
    return folder


@pytest.mark.slow
def test_no_name_is_markup_or_runs_in_the_page_and_the_pages_own_script_does(tmp_path, comparison, browser):
    sources = {hostile_table(tmp_path): "arms", hostile_comparison(comparison, tmp_path): "initializations"}
    for source, what in sources.items():
        page, *files = write_report(source, mode="max", output=tmp_path / what / "page.html")
        drawn = [file for file in files if file.parent.name == "figures"]
        assert drawn
        assert all(re.fullmatch(r"[\w.-]{1,104}", file.name) for file in drawn)
        open_page(browser, page)
        assert value(browser, "document.querySelectorAll('[onerror], svg img, svg script').length") == 0
        assert value(browser, "document.querySelectorAll('script:not([type])').length") == 1
        assert HOSTILE in value(browser, "[...document.querySelectorAll('#curves svg text')].map(t => t.textContent)")
        value(browser, "document.querySelector('.contents a[href=\\'#curves\\']').click()")
        assert value(browser, "document.querySelector('#curves > .fold').open") is True  # which the page's script does
        assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
        # What came in all the same would not run: the policy allows the page's own script alone.
        value(browser, f"document.body.insertAdjacentHTML('beforeend', {json.dumps('<i ' + HOSTILE)})")
        added = "Object.assign(document.createElement('script'), {textContent: 'document.title = 1'})"
        value(browser, f"document.body.append({added})")
        time.sleep(0.2)  # by now the picture has failed to load
        assert "Content Security Policy" in str(browser.get_log("browser"))
        title = "vit_digits" if what == "initializations" else source.stem
        assert value(browser, "document.title") == f"{title}: 2 {what} compared"


@pytest.mark.parametrize(
    ("one", "other"),
    [("val/a", "val_a"), ("é" * 300, "é" * 299), ("\ud800", "_"), ("..", ".")],
)
def test_figures_have_names_that_files_and_ids_can_have_and_that_stay_distinct(one, other):
    slugs = {Drawing(None, name, "").name for name in (one, other)}
    assert len(slugs) == 2
    assert all(re.fullmatch(r"[\w.-]+", slug) and len(slug.encode()) <= 100 for slug in slugs)
    assert Drawing(None, "curves_val_acc_by_step", "").name == "curves_val_acc_by_step"  # as in published reports


def value(browser, script):
    return browser.execute_script(f"return {script}")


def check_readable(browser, width, scheme):
    # All but the result is folded, and opens.
    folded = "[...document.querySelectorAll('main > section > details.fold')]"
    assert value(browser, f"{folded}.length") > 5
    assert value(browser, f"{folded}.some(f => f.open)") is False
    value(browser, "document.querySelector('.contents a[href=\\'#curves\\']').click()")
    assert value(browser, f"{folded}.filter(f => f.open).map(f => f.parentElement.id)") == ["curves"]
    value(browser, f"{folded}.forEach(f => {{ f.open = true; }})")
    # The end of a curve is in sight on a phone: what is right of the plot is cut off, not the plot.
    plot = "document.querySelector('#curves figure:not([hidden]) svg [id$=axes_1] [id$=patch_2]')"
    assert value(browser, f"{plot}.getBoundingClientRect().right") <= width
    assert value(browser, "innerWidth") == width
    assert value(browser, "document.documentElement.scrollWidth") <= width  # no horizontal scroll of the page
    outside = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    # What is wider than the page scrolls in a box of its own.
    assert value(browser, f"{outside}.filter(e => !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80))") == []
    assert value(browser, "document.querySelectorAll('#result tbody tr').length") == 4
    # The paired differences are in sight, on a phone too.
    seen = "r => r.width > 0 && r.right <= innerWidth"
    cells = "[...document.querySelectorAll('#result td.gain, #result td.open')].map(e => e.getBoundingClientRect())"
    assert value(browser, f"{cells}.length") > 0
    assert value(browser, f"{cells}.every({seen})")
    figures = "[...document.querySelectorAll('figure:not([hidden]) svg')].map(s => s.getBoundingClientRect().height)"
    assert len(value(browser, figures)) > 8
    assert min(value(browser, figures)) > 80
    page, ink = (
        sum(int(part) for part in re.findall(r"\d+", value(browser, f"getComputedStyle({of}).{what}"))[:3])
        for of, what in (("document.body", "backgroundColor"), ("document.querySelector('svg text')", "fill"))
    )
    assert abs(page - ink) > 3 * 100
    assert (page > ink) is (scheme == "light")


def check_curves(browser):
    """One at a time, another after a choice."""
    shown = "[...document.querySelectorAll('#curves figure')].filter(f => !f.hidden).map(f => f.dataset.choice)"
    (first,) = value(browser, shown)
    for choice in ("val/loss", "seconds"):
        value(browser, f"[...document.querySelectorAll('#curves input')].find(i => i.value === '{choice}').click()")
    (second,) = value(browser, shown)
    assert (json.loads(first)[1:], json.loads(second)[1:]) == (["val/accuracy", "step"], ["val/loss", "seconds"])


def check_attention(browser):
    """Three arms before and after, other pictures for another layer and head."""
    pictures = "[...document.querySelectorAll('[data-picker=attention] img')].map(i => i.src + i.naturalWidth)"
    before = value(browser, pictures)
    assert len(before) == 6
    assert all(picture.endswith("9") for picture in before)  # loaded, nine tokens wide
    for group in ("layer", "head"):
        value(browser, f"document.querySelectorAll('input[name=attention-{group}]')[1].click()")
        now = value(browser, pictures)
        assert not set(before) & set(now)
        before = now


def check_similarity(browser):
    """A click on a square shows it large."""
    value(browser, 'document.querySelector(\'.squares [data-row="2"][data-column="0"]\').click()')
    assert "mimetic after" in value(browser, "document.querySelector('[data-similarity] figcaption').textContent")
    assert value(browser, "document.querySelectorAll('[data-similarity] rect').length") == 4
    value(browser, "document.querySelector('[data-copy]').click()")


def test_a_threshold_counts_runs_in_place_of_means(comparison):
    values = {"default": {0: 0.1, 1: 0.96, 2: 0.05}, "mimetic": {0: 0.97, 1: 0.98, 2: 0.99}}
    folder = comparison(values, pieces=())
    assert "Results look all or nothing" in compared.report_text(folder, "result")
    result = compared.report_text(folder, "result", success=0.95)
    assert "| mimetic | 3 of 3 (29 to 100 %) | not told apart (adjusted p = 0.40) | 98.0 |" in result
    assert not [word for word in ("±", "all or nothing", "speed-up") if word in result]
    assert "![Share of runs that have reached val accuracy ≥ 95 %, over the steps](figures/successes.png)" in result
    numbers = record(read_report_data(folder, success=0.95))
    assert [arm["share"]["count"] for arm in numbers["successes"][0]["arms"]] == [1, 3]
    assert numbers["successes"][0]["arms"][0]["times"]["median"] == math.inf  # fewer than half
    reach = numbers["places"][0]["arms"][1]["reach"]
    assert {"first": [], "passing": [], "bound": ""}.items() <= reach.items()


def test_what_matplotlib_takes_for_a_formula_or_a_pattern_is_shown_as_it_is(tmp_path):
    arms = ("default", r"$\foo$", r"acc % \u", r"a\$b$")
    rows = [[arm, seed, step, seed + step] for arm in arms for seed in range(2) for step in (1, 2)]
    pd.DataFrame(rows, columns=["arm", "seed", "step", r"val/$\bar$ % \u"]).to_csv(tmp_path / "t.csv", index=False)
    html, *_ = curves(read_report_data(tmp_path / "t.csv", mode="max"))
    assert {text for text in re.findall(r">([^<>]+)</text>", html.drawings[0].svg)} >= set(arms)
