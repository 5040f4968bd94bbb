"""Build the wheel, install it into an empty environment, and use it in a folder outside of the clone.

The empty environment holds the wheel alone. What the wheel depends on is read from the environment that runs this, so
that nothing is downloaded twice; that the clone itself is not read is checked.

    python -m benchmarks.wheel_check
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("structured_init", "callbacks", "lightning_modules", "comparison")
USE = """
import importlib, pathlib, sys
site, clone = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in ("structured_init", "callbacks", "lightning_modules", "comparison"):
    found = pathlib.Path(importlib.import_module(name).__file__)
    assert found.is_relative_to(site) and not found.is_relative_to(clone), found
    assert (found.parent / "py.typed").is_file(), name
import timm
from structured_init import Mimetic, initialize
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=2)
print(initialize(model, Mimetic(), seed=0).summary().rpartition("seed")[2])
"""


def build(folder: Path) -> Path:
    """Build the wheel into a folder, with the build backend of this environment or one from the package index."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Refuse a wheel without its types, templates or configurations."""
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [f"{package}/py.typed" for package in PACKAGES]
    wanted += ["structured_init/__init__.pyi", "comparison/say/templates/report.html.j2"]
    wanted += ["structured_init/configs/experiment/vit_digits.yaml", "structured_init/configs/init/mimetic.yaml"]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SystemExit(f"the wheel lacks {', '.join(missing)}")


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel into an empty environment, and run a script and the command in an empty folder."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    interpreter = environment / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([interpreter, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    # The dependencies of this environment come behind what the empty one holds, but without its link to the clone.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    path = os.pathsep.join([str(site), *sorted(borrowed)])
    work = folder / "work"
    work.mkdir()
    settings = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    subprocess.run([interpreter, "-c", USE, str(site), str(ROOT)], check=True, cwd=work, env=settings)
    command = ["-m", "lightning_modules.cli", "fit", "-c", "vit_digits", "-c", "init/mimetic", "--print_config"]
    shown = subprocess.run([interpreter, *command], check=True, cwd=work, env=settings, capture_output=True, text=True)
    if "class_path: structured_init.Mimetic" not in shown.stdout:
        raise SystemExit("the command does not find the shipped configurations")


def main() -> None:
    """Do all of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        check_contents(wheel)
        use(wheel, folder)
        print(f"{wheel.name} works outside of the clone, on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
