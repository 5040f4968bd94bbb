"""The documentation is complete: every public name has its place, every page is reached, every link leads somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from comparison.command.options import compare_parser
from lightning_modules.cli.configurations import find_config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONTRIBUTING = DOCS / "contributing"  # pages of the repository that the site leaves out
PAGES = sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(CONTRIBUTING))
OTHERS = [*ROOT.glob("*.md"), *CONTRIBUTING.glob("*.md")]
PUBLIC = ("structured_init", "structured_init.analysis", "callbacks", "callbacks.figures", "lightning_modules")


@pytest.mark.parametrize("package", [*PUBLIC, "comparison.say", "structured_init.layers"])
def test_every_public_name_is_in_the_reference(package):
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^\.\. (?:auto(?:class|function|exception)|py:data):: (\w+)", pages, re.MULTILINE))
    names = set(importlib.import_module(package).__all__)
    assert names
    assert names - documented == set()


def test_the_menu_has_every_page_once_and_no_other():
    menu = yaml.safe_load((DOCS / "menu.yaml").read_text(encoding="utf-8"))
    listed = [DOCS / f"{page}.md" for pages in menu.values() for page in pages.values()]
    assert sorted([*listed, DOCS / "index.md"]) == PAGES
    assert len(menu) == 8
    assert len(PAGES) <= 40


def test_the_pages_for_users_have_few_words():
    """Beside blocks of code, targets of links, and what unfolds on a click."""
    aside = re.compile(r"^```.*?^```|<details>.*?</details>|(?<=\])\([^)]*\)", re.DOTALL | re.MULTILINE)
    texts = [aside.sub("", page.read_text(encoding="utf-8")) for page in PAGES]
    assert sum(len(text.split()) for text in texts) <= 19_000


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file(page):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_no_line_of_a_page_is_left_out_as_a_comment(page):
    assert not re.search(r"^ *%", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_nothing_of_the_site_comes_from_another_server():
    for file in [*DOCS.rglob("*.css"), *DOCS.rglob("*.html"), DOCS / "conf.py"]:
        assert "://" not in file.read_text(encoding="utf-8"), file


def test_the_tables_of_presets_are_those_of_their_files():
    spec = importlib.util.spec_from_file_location("catalogue", DOCS / "catalogue.py")
    catalogue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(catalogue)
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert catalogue.write_page(text) == text
    rows = [line for line in text.splitlines() if "](../configs/init/" in line]
    assert len(rows) == len(list((ROOT / "configs" / "init").glob("*.yaml")))
    for row in rows:
        _, _, does, networks, _ = re.split(r" ?\| ?", row)
        assert len(does) > 20, row
        assert networks, row


def scripts(page: Path) -> list[str]:
    """The shell scripts of a page."""
    return re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("code", "requeued"), [(75, "requeue 41\n"), (0, ""), (1, "")])
def test_the_script_for_slurm_goes_back_into_the_queue_while_runs_are_left(tmp_path, code, requeued):
    (script,) = scripts(DOCS / "compare_clusters.md")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f'PATH="{tmp_path}:$PATH"\n')
    programs = {"structured-init": f'printf "%s\\n" "$@" >asked\nexit {code}', "scontrol": 'echo "$@"'}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "41", "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=job, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, requeued, "")
    asked = (tmp_path / "asked").read_text().split("\n")
    assert asked[:3] == ["compare", "-c", "vit_cifar10_short"]
    given = compare_parser().parse_args(asked[1:-1])  # an option that compare does not have ends here
    assert given.output == "runs/vit_cifar10_short"
    assert find_config(asked[2]).file.is_file()
