import json
import sys

from benchmarks import sequential_decisions


def test_the_command_writes_its_numbers_and_their_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sequential_decisions", "--paths", "400", "--output", str(tmp_path)])
    sequential_decisions.main()
    assert json.loads((tmp_path / "sequential_decisions.json").read_text())["cpu_seconds"] > 0
    assert (tmp_path / "sequential_decisions.md").read_text().startswith("# ")
