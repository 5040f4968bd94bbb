"""Every card says where its equation is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_CARDS = {
    "any_attention",
    "claims",
    "compare_clusters",
    "described",
    "extending",
    "index",
    "methods",
    "presets",
    "scaling",
    "tried",
}
CARDS = sorted(path for path in (ROOT / "docs").glob("*.md") if path.stem not in NOT_CARDS)
EQUATION = re.compile(r"\[`[^`]+`\]\(([^)]+\.py)\)(?:: ([^;\n]*))?")


def test_a_card_names_the_file_of_its_equation_and_functions_that_are_there():
    assert len(CARDS) > 20
    for card in CARDS:
        line = next(line for line in card.read_text(encoding="utf-8").splitlines() if line.startswith("**Code.** "))
        files = EQUATION.findall(line)
        assert files, card
        for target, functions in files:
            source = (card.parent / target).read_text(encoding="utf-8")
            for name in re.findall(r"`(\w+)`", functions):
                assert re.search(rf"^(def|class) {name}\b", source, re.MULTILINE), (card, name)
