"""A report reads data: nothing that a results folder holds or names is imported, executed or trusted as markup."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from compared import report_parts, report_text

from comparison.say import write_report
from comparison.say.data import read_report_data
from comparison.say.writing import page
from structured_init import StructuredInitError

VALUES = {"default": {0: 0.8, 1: 0.82}, "sincos": {0: 0.9, 1: 0.91}}
EVIL = """
from pathlib import Path
Path({mark!r}).touch()
class X:
    def __init__(self, *_, **__):
        Path({mark!r}).touch()
"""


class Touch:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.fixture
def malicious(comparison, tmp_path):
    """A finished comparison in which all that could be executed is poisoned, and the mark that this would leave."""
    folder, mark = comparison(VALUES, seconds=False), tmp_path / "executed"
    evil = EVIL.format(mark=str(mark))
    for run in (folder / "runs").glob("*/seed_*/"):
        (run / "metrics.csv").unlink()  # whose figures take seconds
        for place in (run, folder, tmp_path):
            (place / "evilmod.py").write_text(evil)
        (run / "experiment.yaml").write_text(
            "model: {class_path: evilmod.X}\ninit: {initializer: {class_path: evilmod.X}}\n"
            "trainer: {callbacks: [{class_path: evilmod.X}]}\ndata: {class_path: evilmod.X}\n"
        )
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "last.ckpt").write_bytes(pickle.dumps(Touch(str(mark))))
        (run / "hparams.yaml").write_text(f"!!python/object/apply:os.mkdir ['{mark}']\n")
    return folder, mark


def test_nothing_that_a_folder_names_is_executed_and_no_trainer_or_network_library_is_loaded(malicious, tmp_path):
    folder, mark = malicious
    code = (
        "import sys; from comparison.command import report; report(sys.argv[1:]);"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    )
    # As a user would run it beside the folder: what lies there could be imported.
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[3]}:{tmp_path}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "report.html").is_file()
    assert not mark.exists()
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "LOADED" in loaded
    assert not loaded & {"lightning", "timm", "transformers", "lightning_modules", "callbacks", "evilmod"}


def test_report_imports_nothing_that_lies_in_the_present_folder(tmp_path):
    mark = tmp_path / "executed"
    (tmp_path / "t.csv").write_text("arm,seed,test/loss\na,0,1\nb,0,2\n")
    for name in ("numexpr", "bottleneck", "evil"):  # the first two are what pandas looks for
        (tmp_path / f"{name}.py").write_text(EVIL.format(mark=str(mark)))
    (tmp_path / "evil-1.dist-info").mkdir()  # as an installed package that has a command
    (tmp_path / "evil-1.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1\n")
    entry = "[structured_init.commands]\nreport = evil:X\n"
    (tmp_path / "evil-1.dist-info" / "entry_points.txt").write_text(entry)
    done = subprocess.run(
        [sys.executable, "-m", "lightning_modules.cli", "report", "t.csv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "t_report" / "report.html").is_file()
    assert not mark.exists()


def test_the_poison_would_work(malicious, monkeypatch):
    """Else the test above could not fail."""
    folder, mark = malicious
    pickle.loads((folder / "runs" / "default" / "seed_0" / "checkpoints" / "last.ckpt").read_bytes())
    assert mark.exists()
    mark.unlink()
    monkeypatch.syspath_prepend(str(folder))
    __import__("evilmod").X()
    assert mark.exists()


def test_markup_in_names_and_layers_stays_text(comparison):
    folder = comparison({"default": VALUES["default"], "</script><b>": VALUES["sincos"]})
    for path in (folder / "runs").rglob("init_report.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "notes": {"<!--<script>0": "noted"}}))
    html = page(*report_parts(folder, "result", "attention", "initializations", "runs"))
    assert "&lt;/script&gt;&lt;b&gt;" in html
    assert "</script><b>" not in html
    assert "<!--<script>" not in html


def test_a_damaged_file_of_tensors_is_a_line_in_its_panel_and_the_rest_is_there(comparison):
    folder = comparison(VALUES)
    (folder / "runs" / "default" / "seed_0" / "representations" / "after.safetensors").write_bytes(b"\0" * 9)
    text = report_text(folder, "attention", "runs")
    assert "Not shown: cannot read" in text
    assert "## Runs" in text


@pytest.mark.parametrize("place", ["runs/default/seed_0/result.json", "figures", "runs/elsewhere", "plan.json"])
def test_a_link_out_of_the_folder_is_refused_before_anything_is_read_or_written(comparison, tmp_path, place):
    folder, outside = comparison(VALUES, pieces=()), tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret.json"
    file = (folder / place).is_file()
    secret.write_text((folder / place).read_text() if file else "{}")
    (folder / place).unlink(missing_ok=True)
    (folder / place).symlink_to(secret if file else outside)
    before = sorted(folder.rglob("*"))
    with pytest.raises(StructuredInitError, match=r"' is a link(:| out of the folder)"):
        write_report(folder)
    assert (sorted(folder.rglob("*")), sorted(outside.iterdir())) == (before, [secret])


def test_a_link_inside_the_folder_is_none_of_a_reports_business(comparison):
    folder = comparison(VALUES, pieces=())
    checkpoints = folder / "runs" / "default" / "seed_0" / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "last.ckpt").symlink_to("epoch=3.ckpt")  # as ModelCheckpoint(save_last="link") writes it
    assert len(read_report_data(folder).results) == 4


@pytest.mark.parametrize("name", ["t_report", "t_report/figures"])
def test_a_report_of_a_table_is_not_written_through_a_link(tmp_path, name):
    (tmp_path / "t.csv").write_text("arm,seed,test/loss\na,0,1\nb,0,2\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(StructuredInitError, match="is a link: a report is written into folders of its own"):
        write_report(tmp_path / "t.csv")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_report_is_written_over_nothing_that_is_not_its_own(tmp_path):
    (tmp_path / "t.csv").write_text("arm,seed,test/loss\na,0,1\nb,0,2\n")
    for name in ("results.csv", "curves.csv", "page.md", "figures"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(StructuredInitError, match=rf"{name}' is there already.* --output .*page/report.html$"):
            write_report(tmp_path / "t.csv", output=tmp_path / "page.html")
        assert {path.name for path in tmp_path.iterdir()} == {"t.csv", name}
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    for _ in range(2):  # its own are
        write_report(tmp_path / "t.csv", output=tmp_path / "page.html")
    (tmp_path / "t.csv").rename(tmp_path / "results.csv")
    with pytest.raises(StructuredInitError, match=r"results.csv' is there already"):
        write_report(tmp_path / "results.csv", output=tmp_path / "page.html")


def test_a_page_that_is_named_may_stand_behind_a_link(tmp_path):
    (tmp_path / "t.csv").write_text("arm,seed,test/loss\na,0,1\nb,0,2\n")
    (tmp_path / "disk").mkdir()
    (tmp_path / "pages").symlink_to(tmp_path / "disk")
    write_report(tmp_path / "t.csv", output=tmp_path / "pages")
    assert (tmp_path / "disk" / "report.html").is_file()
