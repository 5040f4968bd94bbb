"""The four notebooks are committed as a run leaves them, and a run still leaves them so."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.joinpath("notebooks").glob("*.ipynb"))


def run(notebook):
    """Run a notebook in its folder, and put what it shows into it."""
    folder = {"metadata": {"path": str(ROOT / "notebooks")}}
    NotebookClient(
        notebook, kernel_name="python3", record_timing=False, coalesce_streams=True, resources=folder
    ).execute()


def shape_of(notebook) -> list[list[tuple]]:
    """What kind of output each cell has: a stream by its name, anything else by its formats."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        [(each.output_type, each.get("name"), *sorted(each.get("data", ()))) for each in cell.outputs] for cell in cells
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_committed(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    committed = nbformat.read(path, as_version=4)
    ran = deepcopy(committed)
    run(ran)
    assert shape_of(ran) == shape_of(committed)


def test_notebooks_are_committed_with_small_outputs_and_nothing_of_the_machine_that_ran_them():
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        assert path.stat().st_size < 300_000
        outputs = [output for cell in shape_of(nbformat.read(path, as_version=4)) for output in cell]
        assert {kind for kind, *_ in outputs} <= {"stream", "execute_result", "display_data"}, path
        assert any("image/png" in formats for _, _, *formats in outputs), path
        assert ("stream", "stderr") not in outputs, path
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")))
        assert not [folder for folder in ("/home/", "/root/", "/tmp/", "/work/") if folder in text], path


if __name__ == "__main__":  # make notebooks
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        run(notebook)
        nbformat.write(notebook, path)
