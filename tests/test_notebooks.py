"""The notebooks run, each in the process of the tests, where the libraries are imported already."""

import ast
import io
import warnings
from pathlib import Path

import jupytext
import pytest
from matplotlib.figure import Figure

NOTEBOOKS = sorted(Path(__file__).parents[1].joinpath("notebooks").glob("*.py"))
TRAINED_ELSEWHERE = "10_report"  # a comparison of six runs, as tests/comparison trains them
RUN_HERE = [path for path in NOTEBOOKS if path.stem != TRAINED_ELSEWHERE]


def run(cell: str, names: dict) -> object:
    """Run a cell and return the value of its last expression, as a notebook shows it."""
    *statements, last = ast.parse(cell).body
    if not isinstance(last, ast.Expr):
        statements, last = [*statements, last], None
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [path for path in NOTEBOOKS if path.stem not in TRAINED_ELSEWHERE], ids=lambda p: p.stem
)
def test_every_cell_of_a_notebook_runs(script, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTEBOOK_EPOCHS", "1")
    monkeypatch.setenv("NOTEBOOK_STEPS", "5")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "benchmarks").symlink_to(script.parents[1] / "benchmarks")
    monkeypatch.chdir(tmp_path / "notebooks")
    names = {"__name__": "notebook"}
    figures = 0
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a notebook
        for cell in jupytext.read(script).cells:
            if cell.cell_type == "code":
                shown = run(cell.source, names)
                if isinstance(shown, Figure):
                    shown.savefig(io.BytesIO(), dpi=20)
                    figures += 1
    assert figures


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
