"""Files are replaced whole or not at all; a wrong name is answered with the nearest right one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

import structured_init.util.files
from structured_init import InitReport, StructuredInitError
from structured_init.util.errors import nearest
from structured_init.util.files import read_text, replacing, write_text


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "numbers.json"
    with replacing(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.suffix == ".json"
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert [file.name for file in path.parent.iterdir()] == ["numbers.json"]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ZeroDivisionError("mine"), ZeroDivisionError, "^mine$"),
        (OSError(28, "No space left"), StructuredInitError, "^cannot write '.*/numbers.json': No space left$"),
    ],
)
def test_an_error_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, error, kind, said):
    path = tmp_path / "numbers.json"
    path.write_text("old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(kind, match=said):
        fail()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["numbers.json"]


def test_a_replaced_file_has_the_usual_permissions(tmp_path):
    ordinary, replaced = tmp_path / "ordinary", tmp_path / "replaced"
    ordinary.write_text("")
    with replacing(replaced):
        pass
    assert stat.S_IMODE(replaced.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "valid", "answer"),
    [
        ("Mimetc", ["Mimetic", "Default"], "did you mean 'Mimetic'?"),
        ("xyz", ["b", "a"], "choose from a, b"),
        ("xyz", [f"n{i}" for i in range(9)], "choose from n0, n1, n2, n3, n4, n5, n6, n7, …"),
        ("n2.weight", ["fc.weight", "stages.0.n2.weight"], "did you mean 'stages.0.n2.weight'?"),
        ("optim/moun", ["optim/muon", "optim/adam"], "did you mean 'optim/muon'?"),
    ],
)
def test_the_nearest_name_is_offered(name, valid, answer):
    assert nearest(name, valid) == answer


def test_a_killed_writer_leaves_the_old_file_and_does_not_disturb_the_next(tmp_path):
    path = tmp_path / "curves_[val].png"
    write_text(path, "old")
    code = (
        "import os, signal, sys; from structured_init.util.files import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.read_text() == "old"
    with replacing(path) as outer:
        write_text(path, "inner")  # another write of the same file, while this one goes on
        outer.write_text("outer")
    assert path.read_text() == "outer"


def test_what_has_no_end_or_takes_more_than_it_shows_is_not_read(tmp_path):
    (tmp_path / "zeros").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("w") as file:
        file.truncate(20 * 2**30)
    for name, why in (
        ("zeros", "it is no ordinary file"),
        ("pipe", "it is no ordinary file"),
        ("sparse", "it has 21,474,836,480 bytes, more than 134,217,728"),
        ("absent", "No such file or directory"),
    ):
        with pytest.raises(StructuredInitError) as caught:
            read_text(tmp_path / name)
        assert str(caught.value) == f"cannot read '{tmp_path / name}': {why}"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository of one commit that stands for this one; its command git."""

    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "structured_init").mkdir()
    (tmp_path / "structured_init" / "code.py").write_text("x = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "begin")
    monkeypatch.setattr(structured_init.util.files, "ROOT", tmp_path)
    structured_init.util.files.made_by.cache_clear()
    yield git
    structured_init.util.files.made_by.cache_clear()


def made_by():
    structured_init.util.files.made_by.cache_clear()
    return structured_init.util.files.made_by()


def test_a_clone_says_its_commit_and_how_its_code_differs(clone, tmp_path):
    known = f"{structured_init.__version__}, commit {clone('rev-parse', 'HEAD')[:12]}"
    assert made_by() == known
    (tmp_path / "notes.txt").write_text("no code")
    assert made_by() == known
    said = set()
    for number in (2, 3, 2):
        (tmp_path / "structured_init" / "code.py").write_text(f"x = {number}\n")
        assert made_by().startswith(f"{known}, changed (")
        said.add(made_by())
    assert len(said) == 2
    InitReport("Default()", 0, []).save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["made_by"] == made_by()
