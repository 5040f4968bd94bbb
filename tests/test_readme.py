"""What the README shows is run."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from lightning_modules.cli import main
from structured_init.analysis import capture_attention

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


def prose(text: str) -> str:
    """The words of a page beside its tables, blocks of code, pictures and comments."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||!\[).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_the_readme_is_read_in_ninety_seconds_and_names_the_two_commands_of_a_fresh_machine():
    assert len(prose(README).split()) <= 450
    assert len(re.findall(r"^\|[-|]+\|$", README, re.MULTILINE)) == 1
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"`make {command}` takes" in README
        assert re.search(rf"^{command}:", targets, re.MULTILINE)


def test_the_example_prints_the_report_that_is_shown_and_its_heads_look_at_the_tokens_before(capsys):
    """Shares are measured on weights that are drawn at random, so numbers may differ."""
    (example,), (shown,) = blocks("python"), blocks("")
    names: dict = {}
    exec(example, names)
    printed = capsys.readouterr().out
    assert re.sub(r"[\d.,]+", "#", printed).split() == re.sub(r"[\d.,]+", "#", shown).split()
    tokens = torch.randint(50_257, (4, 128), generator=torch.Generator().manual_seed(0))
    (maps,) = (maps for name, maps in capture_attention(names["model"], tokens).items() if ".h.0." in name)
    for head, offset in enumerate((1, 2, 3, 4)):
        assert maps[:, head].diagonal(-offset, dim1=-2, dim2=-1)[:, 64:].mean() > 0.7


@pytest.mark.parametrize("link", re.findall(r"\]\(([^):#]+\.md)\)", README))
def test_a_page_that_the_readme_links_shows_no_directive_where_a_repository_is_viewed(link):
    text = (ROOT / link).read_text(encoding="utf-8")
    assert re.findall(r"^(?::::+|```\{|\{).*$", text, re.MULTILINE) == []


def test_the_yaml_of_an_initialization_of_ones_own_is_taken_by_the_command(tmp_path, capsys):
    page = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8")
    path = tmp_path / "my_start.yaml"
    path.write_text(re.search(r"```yaml\n(# my_start.yaml.*?)```", page, re.DOTALL)[1])
    with pytest.raises(SystemExit) as done:
        main(["fit", "-c", "vit_digits", "-c", str(path), "--print_config"])
    assert done.value.code in (0, None)
    initializers = yaml.safe_load(capsys.readouterr().out)["init"]["initializer"]["init_args"]["initializers"]
    assert [each["class_path"].rpartition(".")[2] for each in initializers] == [
        "KaimingUniform",
        "Mimetic",
        "Positions",
    ]
    assert initializers[1]["init_args"]["vo_beta"] == 0.2
