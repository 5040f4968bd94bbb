from pathlib import Path

import jupytext
import pytest

NOTEBOOKS = sorted(Path(__file__).parents[1].joinpath("notebooks").glob("*.py"))


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_and_its_script_say_the_same(script):
    cells = [
        [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
        for path in (script, script.with_suffix(".ipynb"))
    ]
    assert cells[0] == cells[1]
    assert len(cells[0]) > 5


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(script):
    code = [cell for cell in jupytext.read(script.with_suffix(".ipynb")).cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
