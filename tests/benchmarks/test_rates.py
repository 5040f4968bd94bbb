"""The rates of pages: what is counted is what the public command writes, and false verdicts are as rare as it says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rates
from comparison.report.panels.result import FAMILY, HALF_WIDTH
from lightning_modules.cli import main


def test_what_is_counted_stands_on_the_page_of_the_command(tmp_path):
    rng = np.random.default_rng(0)
    arms = {"default": rates.normal(rng, (5, 4)), "arm1": rates.normal(rng, (5, 4)) + 0.05}
    text = rates.of_table(arms, tmp_path, say=rates.able)
    main(["report", str(tmp_path / "table.csv")])
    page = (tmp_path / "table_report" / "report.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    for line in filter(None, text.splitlines()):
        assert line in page
    assert rates.VERDICT.search(text)[1] == "Better"
    assert re.search(r"called better or worse with a probability of 80 %", text)
    assert "one page in twenty" in FAMILY
    assert "up to one in five" in FAMILY
    assert "95 %" in HALF_WIDTH


def test_the_ends_of_printed_intervals_are_read():
    table = "| arm | seeds | x | − default (paired) |\n| --- | --- | --- | --- |\n"
    table += "| default | 3 | 82.0 (76.5 to 86.4) | baseline |\n| a | 3 | 97.0 ± 0.5 | −0.2 ± 0.1 |\n"
    table += "| b | 3 | 100.0 | +1 |"
    assert list(rates.printed(table, 2)) == [(76.5, 86.4), (96.5, 97.5)]
    assert rates.ends("−0.2 ± 0.1 (p = 1)") == pytest.approx((-0.3, -0.1))
    assert rates.ends("100.0 (3 of 3 at 100.0 %)") is None


def test_a_page_of_arms_that_differ_has_a_verdict_and_one_of_controls_alone_has_none(tmp_path):
    rng = np.random.default_rng(1)
    low, high = rates.normal(rng, (5,)), rates.normal(rng, (5,)) + 0.1
    named = rates.of_table({"default": low, "arm1": low + 0.001 * rng.normal(size=5), "arm1_scrambled": high}, tmp_path,
                           {"arm1": "arm1_scrambled"})  # fmt: skip
    assert "Worse than its scrambled control" in named
    assert "than default" not in named  # its control is no competitor
    assert "a control, not judged" in named


def test_pages_without_an_effect_rarely_find_one(tmp_path):
    rng, tables = np.random.default_rng(2), 60
    texts = [rates.of_results(rates.normal(rng, (4, 3, 5))) for _ in range(tables)]  # with four families 0.18
    found = sum(bool(rates.VERDICT.search(text)) for text in texts)
    assert found <= tables * 0.05 + 3 * math.sqrt(tables * 0.05 * 0.95)


def test_a_rate_agrees_to_a_tenth_or_is_safe_or_off():
    def verdict(seen, at_most):
        return rates.verdict({"printed": 0.05, "at_most": at_most, "hits": seen, "count": 10**5})["verdict"]

    assert [verdict(seen, True) for seen in (0, 4700, 5400, 6000)] == ["safe", "agrees", "agrees", "**off**"]
    assert verdict(6000, False) == "safe"


def test_the_command_writes_numbers_and_a_page_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    drawn = []

    def parts():
        def seen(rng, tables, place):
            drawn.append(tables)
            return [rates.Rate("a rate", 0.05, list(rng.random(tables) < 0.5), at_most=True)]

        yield rates.Case("a case", seen, more=2)

    monkeypatch.setattr(rates, "PARTS", (parts,))
    rates.main(["--tables", "60", "--output", str(tmp_path)])
    assert drawn == [50, 50, 20]
    rates.main(["--tables", "100", "--output", str(tmp_path)])
    assert drawn == [50, 50, 20, 50, 30]
    (row,) = json.loads((tmp_path / "rates.json").read_text())
    assert (row["tables"], row["count"]) == (200, 200)
    assert 60 < row["hits"] < 140
    assert "| a rate | a case | 200 | 5 % | " in (tmp_path / "rates.md").read_text()


def test_a_speed_up_and_the_referee_are_counted(tmp_path):
    cases = {case.name: case for part in (rates.speed, rates.decided) for case in part()}
    (curves,) = cases["curves, 2 arms, 3 seeds"].rates(np.random.default_rng(0), 2, tmp_path)
    assert len(curves.found) == 2
    keeps, interval = cases["effect 0 σ, 1 of 10"].rates(np.random.default_rng(0), 2, tmp_path)
    assert (keeps.printed, round(interval.printed, 3)) == (0.005, 0.991)


def test_every_committed_rate_agrees_or_is_safe_and_no_mean_of_exact_matches_has_an_interval():
    rows = json.loads((rates.RESULTS / "rates.json").read_text())
    assert len(rows) > 60
    assert not [row for row in rows if "off" in rates.verdict(row)["verdict"]]
    solved = [row for row in rows if row["about"] == "95 % interval of a mean" and "exact match" in row["case"]]
    assert [row["count"] for row in solved] == [0, 0, 0]
    assert (rates.RESULTS / "rates.md").read_text() == rates.report(rows)
    statistics = Path(rates.__file__).parents[1] / "docs" / "compare_statistics.md"
    assert "If runs fail now and then" in statistics.read_text()
