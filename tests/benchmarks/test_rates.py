"""The rates of pages: what is counted is what the public command writes, and false verdicts are as rare as it says."""

from __future__ import annotations

import json

import numpy as np

from benchmarks import rates
from lightning_modules.cli import main


def test_what_is_counted_stands_on_the_page_of_the_command(tmp_path):
    rng = np.random.default_rng(0)
    arms = {"default": rates.normal(rng, (5, 4)), "arm1": rates.normal(rng, (5, 4)) + 0.05}
    text = rates.of_table(arms, tmp_path)
    main(["report", str(tmp_path / "table.csv")])
    page = (tmp_path / "table_report" / "report.md").read_text()
    for line in filter(None, text.splitlines()):
        assert line in page
    assert rates.VERDICT.search(text)[1] == "better"


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


def test_every_committed_rate_agrees_or_is_safe():
    rows = json.loads((rates.RESULTS / "rates.json").read_text())
    assert len(rows) > 40
    assert not [row for row in rows if "off" in rates.verdict(row)["verdict"]]
    assert (rates.RESULTS / "rates.md").read_text() == rates.report(rows)
