"""The commands of docs/contributing/benchmarks.md are ones that can be run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from comparison.command import compare_parser
from comparison.plan.arms import parse_arms
from comparison.plan.prepare import prepare
from lightning_modules.cli.configurations import find_config

PAGE = (Path(__file__).parents[2] / "docs" / "contributing" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[2:]
    for line in PAGE.replace(",\\\n", ",").replace("\\\n", " ").splitlines()
    if line.startswith("structured-init compare") and "$(" not in line  # test_sweep.py tries that one
]


def test_every_command_of_the_page_names_options_arms_and_configurations_that_exist():
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        options, _ = compare_parser().parse_known_args(command)
        assert "default" in parse_arms(options.inits)
        assert all(find_config(name).files[-1].is_file() for name in options.config)


@pytest.mark.slow
def test_the_comparison_of_the_first_table_can_be_made(tmp_path):
    # --launcher ray: what is built to find mistakes need not have the devices of the machine that trains
    words = [*COMMANDS[0], "--launcher", "ray", "--output", str(tmp_path / "out")]
    comparison = prepare(*compare_parser().parse_known_args(words), "")
    assert comparison.baseline == "default"
    assert len(comparison.arms) * len(comparison.points()) > 1
