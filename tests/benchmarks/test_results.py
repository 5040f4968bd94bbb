"""What is committed under benchmarks/results: pictures that are shown, no dead link, and little of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *RESULTS.rglob("*.md")]
FILES = [path for path in RESULTS.rglob("*") if path.is_file()]


def targets(page: Path) -> list[Path]:
    """The files that a page links or shows."""
    links = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
    return [(page.parent / link).resolve() for link in links if "://" not in link]


def test_every_link_into_the_results_resolves_and_every_picture_is_linked():
    linked = {target for page in PAGES for target in targets(page)}
    into = [target for target in linked if target.is_relative_to(RESULTS)]
    assert len(into) > 50
    assert [str(target) for target in into if not target.exists()] == []
    pictures = {path.resolve() for path in FILES if path.suffix == ".png"}
    assert len(pictures) > 10
    assert sorted(pictures - linked) == []


def test_results_are_numbers_pages_and_pictures_of_less_than_eight_megabytes():
    assert {path.suffix for path in FILES} == {".md", ".json", ".csv", ".png"}
    assert sum(path.stat().st_size for path in FILES) < 8e6


def test_a_published_comparison_has_its_numbers():
    comparisons = [path.parent for path in RESULTS.rglob("report.md")]
    assert comparisons
    for folder in comparisons:
        assert all((folder / name).is_file() for name in ("plan.json", "results.csv", "results.json", "curves.csv"))
