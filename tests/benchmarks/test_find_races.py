import json
import sys

from benchmarks import find_races


def test_the_command_writes_the_numbers_of_simulated_and_replayed_races(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["find_races", "--races", "4", "--output", str(tmp_path)])
    monkeypatch.setattr(find_races, "REAL", ("compare_digits",))
    find_races.main()
    found = json.loads((tmp_path / "find_races.json").read_text())
    assert found["races"] == 4
    assert found["replayed"]
    assert found["simulated"]
    assert (tmp_path / "find_races.md").read_text().startswith("# ")
