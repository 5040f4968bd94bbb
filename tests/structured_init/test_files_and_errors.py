"""Files are replaced whole or not at all; a wrong name is answered with the nearest right one."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

from structured_init import StructuredInitError
from structured_init.errors import nearest
from structured_init.files import replacing, write_json, write_text


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "numbers.json"
    with replacing(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.suffix == ".json"
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert [file.name for file in path.parent.iterdir()] == ["numbers.json"]


def test_an_error_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        1 / temporary.write_text("")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["numbers.json"]


def test_somebody_reading_the_old_file_goes_on_reading_it(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text("old")
    with path.open() as reader:
        with replacing(path) as temporary:
            temporary.write_text("new")
        assert (reader.read(), path.read_text()) == ("old", "new")


def test_a_replaced_file_has_the_usual_permissions(tmp_path):
    ordinary, replaced = tmp_path / "ordinary", tmp_path / "replaced"
    ordinary.write_text("")
    with replacing(replaced):
        pass
    assert stat.S_IMODE(replaced.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_a_folder_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StructuredInitError) as caught, replacing(tmp_path / "file" / "x.json"):
        pass
    assert str(caught.value).startswith(f"cannot write '{tmp_path}/file/x.json': ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "valid", "answer"),
    [
        ("Mimetc", ["Mimetic", "Default"], "did you mean 'Mimetic'?"),
        ("xyz", ["b", "a"], "choose from a, b"),
        ("xyz", [f"n{i}" for i in range(9)], "choose from n0, n1, n2, n3, n4, n5, n6, n7, …"),
        ("xyz", [], "there is nothing to choose from"),
    ],
)
def test_the_nearest_name_is_offered(name, valid, answer):
    assert nearest(name, valid) == answer


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new folder" / "values.json"
    write_json(path, {"σ": [1, None]})
    assert path.read_text(encoding="utf-8") == '{\n "σ": [\n  1,\n  null\n ]\n}\n'
    with pytest.raises(TypeError):
        write_json(path, {"a set": {1}})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": [1, None]}
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_by_the_next_and_what_another_writes_is_not(tmp_path):
    path = tmp_path / "curves_[val].png"
    code = (
        "import os, signal, sys; from structured_init.files import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".curves_[val]-")
    with replacing(path) as outer:
        assert list(tmp_path.iterdir()) == [outer]  # what was left is gone
        write_text(path, "inner")  # another write of the same file, while this one goes on
        assert outer.exists()
        outer.write_text("outer")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(path.name, "outer")]
