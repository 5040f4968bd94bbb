"""The commands of docs/benchmarks.md are ones that can be run, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from comparison.command import compare_parser
from comparison.run.prepare import prepare

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[2:]
    for line in PAGE.replace(",\\\n", ",").replace("\\\n", " ").splitlines()
    if line.startswith("structured-init compare") and "$(" not in line  # test_sweep.py tries that one
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: Path(command[command.index("--output") + 1]).name)
def test_the_command_of_a_table_can_be_run(command, tmp_path):
    # --launcher ray: what is built to find mistakes need not have the devices of the machine that trains
    words = [*command, "--launcher", "ray", "--output", str(tmp_path / "out")]
    options, further = compare_parser().parse_known_args(words)
    comparison = prepare(options, further, "")
    assert comparison.baseline == "default"
    assert len(comparison.arms) * len(comparison.points()) > 1


def test_there_are_commands():
    assert len(COMMANDS) >= 8


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE.replace("\n", " ")):
        assert (ROOT / "docs" / target).exists(), target


def test_every_benchmark_that_make_runs_is_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    loop = makefile.split("for run in ")[1].split("; do")[0].replace("\\\n", " ")
    names = [words.split()[0] for words in shlex.split(loop)] + re.findall(r"-m benchmarks\.(\w+)", makefile)
    assert len(names) >= 5
    for name in names:
        assert (ROOT / "benchmarks" / f"{name}.py").is_file(), name


def test_every_script_is_smoked_by_a_test():
    """A script that can be run has a test file of its name, or CI runs it itself."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    scripts = [
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
    ]
    assert len(scripts) >= 10
    without = [name for name in scripts if not (Path(__file__).parent / f"test_{name}.py").is_file()]
    assert [name for name in without if name.replace("_", "-") not in ci] == []


def test_every_script_of_the_page_is_there():
    _, *rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) >= 5
    for name in names:
        assert (ROOT / "benchmarks" / f"{name}.py").is_file(), name
