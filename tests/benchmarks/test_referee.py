"""The replay of proposals: a loop without effects keeps nothing beside a referee, and greedy search keeps luck."""

from __future__ import annotations

import json

import pytest

from benchmarks import referee as replay


def test_a_loop_of_proposals_without_effect_keeps_none_and_one_with_effects_keeps_some():
    empty = [replay.loop(replay.LOGS["senpai"], "referee, margin 1 σ", seed, 0.0) for seed in range(2)]
    assert sum(each.false for each in empty) == 0
    real = replay.loop(replay.LOGS["senpai"], "referee, margin 1 σ", 2, 0.2)
    assert real.true >= 5
    assert real.false == 0
    assert replay.loop(replay.LOGS["senpai"], "greedy", 0, 0.0).false > 0


def test_the_command_writes_numbers_a_page_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "LOGS", {"senpai": replay.LOGS["senpai"]})
    monkeypatch.setattr(replay, "WAYS", {"greedy": replay.WAYS["greedy"]})
    replay.main(["--output", str(tmp_path), "--loops", "3"])
    rows = json.loads((tmp_path / "referee.json").read_text())
    assert [row["runs"] for row in rows] == [3 * 51] * 2
    assert "| senpai | 0% | greedy | " in (tmp_path / "referee.md").read_text()
    replay.main(["--output", str(tmp_path), "--loops", "4"])  # one more
    again = json.loads((tmp_path / "referee.json").read_text())
    monkeypatch.setattr(replay, "loop", lambda *_: pytest.fail("it is there already"))
    replay.main(["--output", str(tmp_path), "--loops", "4"])
    assert [row["loops"] for row in again] == [4, 4]
    assert [row["runs"] for row in again] == [4 * 51] * 2
    assert (tmp_path / "referee.png").stat().st_size > 1000


def test_of_committed_loops_without_an_effect_the_referee_spoils_less_than_five_in_a_hundred():
    rows = json.loads((replay.RESULTS / "referee.json").read_text())
    none = [row for row in rows if not row["share"] and row["way"].startswith("referee")]
    assert [row["loops"] for row in none] == [1000] * 2 * len(replay.LOGS)
    assert all(row["loops_with_false"] <= 50 for row in none)
    assert (replay.RESULTS / "referee.md").read_text() == replay.page(rows)
