"""The benchmark of what it costs until a command answers."""

from __future__ import annotations

import pytest

from benchmarks import command_startup


def test_ratios_are_taken_within_a_round_and_stand_in_the_table():
    names = [*command_startup.REFERENCES, *command_startup.COMMANDS]
    seconds = {name: [1.0, 2.0, 4.0] for name in names}
    seconds["structured-init --help"] = [0.5, 3.0, 2.0]
    record = {"rounds": 3, "seconds": seconds}
    ratios = {claim.command: ratio for claim, ratio in command_startup.ratios(record)}
    assert ratios["structured-init --help"] == 0.5
    assert ratios["load_results"] == 1.0
    assert "| `structured-init --help` | 2.00 (0.50 – 3.00) | `import torch` | 0.50 | 1.3 |" in command_startup.table(
        record
    )


def test_a_process_is_timed_by_the_system_and_a_failing_one_is_an_error():
    assert 0 < command_startup.cpu_seconds(["-c", "sum(range(10**5))"]) < 5
    with pytest.raises(RuntimeError, match="exit code 3"):
        command_startup.cpu_seconds(["-c", "raise SystemExit(3)"])
