"""The comparison of the first table of docs/contributing/benchmarks.md can be made."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from comparison.command import compare_parser
from comparison.plan.prepare import prepare

PAGE = (Path(__file__).parents[2] / "docs" / "contributing" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[2:]
    for line in PAGE.replace(",\\\n", ",").replace("\\\n", " ").splitlines()
    if line.startswith("structured-init compare") and "$(" not in line  # test_sweep.py tries that one
]


@pytest.mark.slow
def test_the_comparison_of_the_first_table_can_be_made(tmp_path):
    # --launcher ray: what is built to find mistakes need not have the devices of the machine that trains
    words = [*COMMANDS[0], "--launcher", "ray", "--output", str(tmp_path / "out")]
    comparison = prepare(*compare_parser().parse_known_args(words), "")
    assert comparison.baseline == "default"
    assert len(comparison.arms) * len(comparison.points()) > 1
