"""The notebooks run, in one process that imports the libraries once, as installed: without the tests' type checks."""

import ast
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.joinpath("notebooks").glob("*.py"))
TRAINED_ELSEWHERE = "10_report"  # a comparison of six runs, as tests/comparison trains them
RUN_HERE = [path for path in NOTEBOOKS if path.stem != TRAINED_ELSEWHERE]
SHORT = {"NOTEBOOK_EPOCHS": "1", "NOTEBOOK_STEPS": "5"}


def shown(cell: str, names: dict) -> object:
    """Run a cell without its magics, and return the value of its last expression, as a notebook shows it."""
    *statements, last = ast.parse("\n".join(line for line in cell.splitlines() if not line.startswith("%"))).body
    if not isinstance(last, ast.Expr):
        statements, last = [*statements, last], None
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def run(script: Path) -> dict:
    """Run a notebook; count its figures, each of which is drawn, and keep what went wrong."""
    from matplotlib.figure import Figure

    figures, names = 0, {"__name__": "notebook"}
    try:
        for cell in jupytext.read(script).cells:
            value = shown(cell.source, names) if cell.cell_type == "code" else None
            if isinstance(value, Figure):
                value.savefig(io.BytesIO(), dpi=20)
                figures += 1
    except Exception:
        return {"figures": figures, "error": traceback.format_exc()}
    return {"figures": figures, "error": None}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What became of each notebook, by name."""
    folder = tmp_path_factory.mktemp("clone") / "notebooks"
    folder.mkdir()
    (folder.parent / "benchmarks").symlink_to(ROOT / "benchmarks")
    environment = os.environ | SHORT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", __file__, "results.json"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("script", RUN_HERE, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs_and_figures_are_drawn(script, results):
    assert results[script.stem]["error"] is None, results[script.stem]["error"]
    assert results[script.stem]["figures"] > 0


def test_notebooks_say_what_their_scripts_say_show_their_figures_and_are_committed_without_outputs():
    """matplotlib draws a figure that is not pyplot's only where its magic, or pyplot itself, has asked for it."""
    for script in NOTEBOOKS:
        notebook = jupytext.read(script.with_suffix(".ipynb"))
        said = [(cell.cell_type, cell.source) for cell in notebook.cells]
        assert said == [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells], script
        assert len(said) > 5
        assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
        text = script.read_text(encoding="utf-8")
        assert "# %matplotlib inline\n" in text or "figure" not in text.lower(), script


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({script.stem: run(script) for script in RUN_HERE}))
