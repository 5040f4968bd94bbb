"""What is committed under benchmarks/results: few pictures, all of them shown, no dead link, and little of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *RESULTS.rglob("*.md"), *(ROOT / "notebooks").glob("*.py")]
COMPARISONS = sorted(path.parent for path in RESULTS.rglob("report.md"))
KINDS = {".md", ".json", ".csv", ".png"}
MEGABYTES = 8
TRIED = re.findall(r"`pytest ([^`]+)`", (RESULTS / "faults.md").read_text(encoding="utf-8"))


def targets(page: Path) -> list[Path]:
    """The files that a page links or shows."""
    links = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
    return [(page.parent / link).resolve() for link in links if "://" not in link]


def files() -> list[Path]:
    return [path for path in RESULTS.rglob("*") if path.is_file()]


def test_every_picture_is_linked_from_a_page():
    linked = {target for page in PAGES for target in targets(page)}
    pictures = {path.resolve() for path in files() if path.suffix == ".png"}
    assert len(pictures) > 10
    assert sorted(pictures - linked) == []


def test_every_link_of_a_page_of_results_resolves():
    pages = [page for page in PAGES if page.is_relative_to(RESULTS)]
    assert len(pages) > 30
    assert [(page.name, target.name) for page in pages for target in targets(page) if not target.exists()] == []


def test_every_link_into_the_results_resolves():
    links = [target for page in PAGES for target in targets(page) if target.is_relative_to(RESULTS.resolve())]
    assert len(links) > 50
    assert [str(target) for target in links if not target.exists()] == []


def test_results_are_numbers_pages_and_pictures_of_less_than_eight_megabytes():
    assert {path.suffix for path in files()} == KINDS
    assert sum(path.stat().st_size for path in files()) < MEGABYTES * 1e6


@pytest.mark.parametrize("folder", COMPARISONS, ids=lambda path: path.name)
def test_a_published_comparison_has_its_numbers_and_says_how_its_other_figures_are_made(folder):
    assert all((folder / name).is_file() for name in ("comparison.json", "results.csv", "results.json", "curves.csv"))
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert f"{text.count('](figures/')} are kept here. The command under *Runs* makes all of them again" in text
    assert "```\nstructured-init compare " in text


def defined(place: str) -> str:
    """The names of the tests of a file, or of all files of a folder."""
    files = sorted((ROOT / place).rglob("test_*.py")) if (ROOT / place).is_dir() else [ROOT / place]
    return " ".join(re.findall(r"def (test_\w+)", "".join(file.read_text(encoding="utf-8") for file in files)))


def test_every_test_that_the_page_of_faults_names_exists():
    lost = []
    for command in TRIED:
        places, _, pattern = command.partition(" -k ")
        places = [place.split("::") for place in shlex.split(places)]
        names = " ".join(defined(file) for file, *_ in places)
        lost += [name for file, *test in places for name in test if name not in defined(file).split()]
        lost += [part for part in pattern.strip('"').split(" or ") if part not in names]
    assert len(TRIED) >= 40
    assert lost == []
