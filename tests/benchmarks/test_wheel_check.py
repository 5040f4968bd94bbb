"""A wheel that lacks what users need is refused; `make wheel-check` installs and uses the real one."""

from __future__ import annotations

import zipfile

import pytest

from benchmarks.wheel_check import PACKAGES, ROOT, check_contents


def wheel(folder, leave_out=()):
    """A wheel of the clone's own files, without some of them."""
    path = folder / "structured_init-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for package in PACKAGES:
            for file in (ROOT / package).rglob("*"):
                name = file.relative_to(ROOT).as_posix()
                if file.is_file() and "__pycache__" not in name and name not in leave_out:
                    archive.write(file, name)
        for file in (ROOT / "configs").rglob("*.yaml"):
            archive.write(file, f"structured_init/{file.relative_to(ROOT).as_posix()}")
    return path


def test_a_wheel_of_all_packages_is_complete(tmp_path):
    check_contents(wheel(tmp_path))


@pytest.mark.parametrize("name", ["callbacks/py.typed", "structured_init/__init__.pyi"])
def test_a_wheel_without_its_types_is_refused_by_name(tmp_path, name):
    with pytest.raises(SystemExit, match=f"the wheel lacks {name}"):
        check_contents(wheel(tmp_path, leave_out=(name,)))
