"""The command of the page of claims writes the page and the README's table, and nothing else of the README."""

from __future__ import annotations

from pathlib import Path

from benchmarks.claims_page import BEGIN, END, main

ROOT = Path(__file__).parents[2]


def test_the_command_writes_the_page_and_the_table_of_the_readme(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"before\n\n{BEGIN}\n\nan old table\n\n{END}\n\nafter\n", encoding="utf-8")
    main(["--root", str(tmp_path)])
    written = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert written.startswith("before\n\n")
    assert written.endswith("\n\nafter\n")
    assert "an old table" not in written
    assert written.partition(BEGIN)[2].partition(END)[0] in (ROOT / "README.md").read_text(encoding="utf-8")
    page = (tmp_path / "docs" / "claims.md").read_text(encoding="utf-8")
    assert page == (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
