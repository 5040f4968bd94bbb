"""Imports point one way: ``callbacks`` and ``lightning_modules`` → ``structured_init`` → torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import structured_init

ROOT = Path(structured_init.__file__).parents[1]
HOSTS = ("lightning", "pytorch_lightning", "timm", "transformers", "callbacks", "lightning_modules")
FORBIDDEN = {
    "structured_init": {"lightning", "pytorch_lightning", "timm", "transformers", "callbacks", "lightning_modules"},
    "callbacks": {"lightning_modules"},
    "lightning_modules": {"callbacks"},
}
# The command line brings both together; comparing is a part of it.
MAY = re.compile(r"lightning_modules/(cli\.py|compare/.*): callbacks")


def imported(path):
    """The top-level packages that a file imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_file_imports_what_stands_above_it(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in files
        for name in imported(path)
        if name in FORBIDDEN[package]
    }
    assert [each for each in found if not MAY.fullmatch(each)] == []


def test_importing_the_library_and_looking_for_sites_imports_no_host_and_no_lightning():
    code = f"""
import sys, torch
from structured_init import attention_sites, position_sites
model = torch.nn.TransformerEncoderLayer(8, 2, 8)
assert isinstance(attention_sites(model), list) and position_sites(model) == []
print([name for name in {HOSTS} if name in sys.modules])"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_the_public_surface_is_what_is_listed():
    assert sorted(structured_init.__all__) == structured_init.__all__
    assert all(hasattr(structured_init, name) for name in structured_init.__all__)
    expected = {"Initializer", "Compose", "initialize", "InitReport", "Default", "TruncatedNormal", "KaimingUniform"}
    expected |= {"Positions", "Mimetic", "attention_sites", "register_attention", "AttentionSite", "PositionSite"}
    assert expected <= set(structured_init.__all__)


def test_initializer_classes_take_plain_arguments_only():
    """What YAML can write: each argument has a default and keeps it under its own name."""
    import inspect

    for name in ("Default", "TruncatedNormal", "KaimingUniform", "Positions", "Mimetic"):
        cls = getattr(structured_init, name)
        made = cls()
        for argument, parameter in inspect.signature(cls).parameters.items():
            assert isinstance(parameter.default, str | int | float | bool | None), (name, argument)
            assert getattr(made, argument) == parameter.default
