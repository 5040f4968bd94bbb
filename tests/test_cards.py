"""Every page about code of ours says where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import structured_init

DOCS = Path(__file__).parents[1] / "docs"
NAMED = re.compile(r"\[`[^`]+`\]\(([^)]+\.py)\)(?:: ([^;]*))?")
CARDS = [page for page in sorted(DOCS.rglob("*.md")) if "**Code.** " in page.read_text(encoding="utf-8")]


def test_every_initializer_is_on_a_page_with_code():
    text = "".join(card.read_text(encoding="utf-8") for card in CARDS)
    public = [getattr(structured_init, name) for name in structured_init.__all__]
    classes = [each for each in public if isinstance(each, type) and each is not structured_init.Initializer]
    names = [each.__name__ for each in classes if issubclass(each, structured_init.Initializer)]
    assert len(names) > 20
    assert [name for name in names if name not in text] == []


METHODS = yaml.safe_load((DOCS / "menu.yaml").read_text(encoding="utf-8"))["Methods"]


@pytest.mark.parametrize("name", [name for name in METHODS.values() if name != "methods"])
def test_the_page_of_a_method_is_short(name):
    text = re.sub(
        r"^```.*?^```|(?<=\])\([^)]*\)", "", (DOCS / f"{name}.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert len(text.split()) <= 300
    assert text.count("![") <= 1
    assert len(re.findall(r"^\|[-|]+\|$", text, re.MULTILINE)) <= 1


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.relative_to(DOCS).as_posix())
def test_a_card_names_the_files_of_its_code_and_functions_that_are_there(card):
    paragraph = card.read_text(encoding="utf-8").partition("**Code.** ")[2].partition("\n\n")[0].replace("\n", " ")
    files = NAMED.findall(paragraph)
    assert files
    for target, functions in files:
        source = (card.parent / target).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE), name
