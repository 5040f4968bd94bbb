"""Every card says where its equation is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_CARDS = {
    "any_attention",
    "architecture",
    "baselines_rules",
    "benchmarks",
    "claims",
    "claims_runs",
    "compare_clusters",
    "described",
    "extending",
    "index",
    "methods",
    "presets",
    "results",
    "scaling",
}
CARDS = sorted(path for path in (ROOT / "docs").glob("*.md") if path.stem not in NOT_CARDS)
EQUATION = re.compile(r"\[`[^`]+`\]\(([^)]+\.py)\)(?:: ([^;\n]*))?")


@pytest.mark.parametrize("card", CARDS, ids=lambda path: path.stem)
def test_a_card_names_the_file_of_its_equation_and_functions_that_are_there(card):
    line = next(line for line in card.read_text(encoding="utf-8").splitlines() if line.startswith("**Code.** "))
    files = EQUATION.findall(line)
    assert files
    for target, functions in files:
        source = (card.parent / target).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"^(def|class) {name}\b", source, re.MULTILINE), name


def test_the_page_of_methods_leads_to_its_equations():
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    section = text[text.index("## Where the equations are") :].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|") and ".py" in line]
    assert len(lines) == 9
    assert all(EQUATION.search(line) and EQUATION.search(line)[2] for line in lines)
    for target, functions in (row for line in lines for row in EQUATION.findall(line) if row[1]):
        source = (ROOT / "docs" / target).read_text(encoding="utf-8")
        names = re.findall(r"`(?:\w+\.)?(\w+)`", functions)
        assert names
        assert all(re.search(rf"^ *def {name}\b", source, re.MULTILINE) for name in names)
