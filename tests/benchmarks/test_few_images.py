"""benchmarks/few_images.py: the rates that are tried, and what its picture and page say of known accuracies."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks import few_images, few_images_picture

TRIED = {(arm, rate) for arm in ("default", "sincos") for rate in (0.01, 0.03, 0.1)}


def accuracy(arm, seed):
    """sincos is 2 points above the default with a spread of 0.1 over seeds; all others equal the default."""
    return 0.3 + seed / 100 + (arm == "sincos") * (0.02 + (seed - 22) / 1000)


@pytest.fixture
def results(tmp_path):
    """A table of one place in which all arms have run."""
    seeds = range(20, 25)
    place = {"data": "cifar10", "images": 2000, "steps": 160, "lr": 0.03}
    rows = [
        {**place, "arm": arm, "seed": seed, "test/accuracy": accuracy(arm, seed)}
        for arm in few_images.ARMS
        for seed in seeds
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    return tmp_path / "results.csv"


def test_rates_go_on_where_an_end_is_best():
    assert [*few_images.beyond({"default": 0.1, "sincos": 0.03}, TRIED)] == [("default", 0.3)]
    assert [*few_images.beyond({"default": 0.03, "sincos": 0.01}, TRIED)] == [("sincos", 0.003)]
    first, *_, last = few_images.RATES
    assert [*few_images.beyond({"default": last, "sincos": first}, {("default", 0.3), ("sincos", 0.0003)})] == [
        ("default", last),
        ("sincos", first),
    ]


def test_the_page_and_the_picture_say_the_difference(results):
    few_images_picture.main(["--results", str(results), "--output", str(results.parent / "map")])
    page = (results.parent / "map.md").read_text()
    assert "| CIFAR-10 | 2,000 | 160 | +2.0 ± 0.2 | +0.0 | +0.0 | −2.0 ± 0.2 | +0.0 |" in page
    assert "| CIFAR-10 | 2,000 | 160 | 52.0 (0.03) | 54.0 (0.03) |" in page
    panels = few_images_picture.figure(pd.read_csv(results)).axes
    (text,) = panels[0].texts
    assert (text.get_text(), text.get_weight()) == ("+2.0\n±0.2", "bold")
    assert (results.parent / "map.png").stat().st_size > 1000
