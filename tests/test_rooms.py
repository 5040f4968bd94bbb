"""Imports point one way: ``comparison`` → ``lightning_modules`` → ``callbacks`` → ``structured_init`` → torch."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import structured_init

ROOT = Path(structured_init.__file__).parents[1]
PACKAGES = ("structured_init", "callbacks", "lightning_modules", "comparison")
HOSTS = ("lightning", "pytorch_lightning", "timm", "transformers", "callbacks", "lightning_modules")
# A room and what no file in it imports, not even inside a function.
CLI, TASKS, DATA, NETWORKS = (f"lightning_modules.{room}" for room in ("cli", "tasks", "data", "networks"))
INITIALIZERS = ("attention", "conv", "impulse", "sequence", "ssm", "transfer")
WRITES, LOOKS = tuple(f"structured_init.{room}" for room in INITIALIZERS), "structured_init.analysis"
PLAN_AND_TRAIN = ("comparison.plan", "comparison.train")
# What reads finished runs needs neither the networks nor what trained them.
NO_NETWORKS = (
    *("torch", "lightning", "timm", "transformers", "callbacks", "lightning_modules"),
    *("structured_init.analysis", *PLAN_AND_TRAIN, "comparison.command"),
)
FORBIDDEN = {
    "structured_init": (*HOSTS, "comparison"),
    "structured_init/hosts": (*WRITES, LOOKS),
    "structured_init/hosts/watching": (*WRITES, LOOKS, "structured_init.hosts.attention", "structured_init.hosts.timm"),
    "structured_init/layers": (*WRITES, LOOKS, "structured_init.hosts"),
    **{f"structured_init/{room}": (LOOKS,) for room in INITIALIZERS},
    "structured_init/controls.py": (LOOKS,),
    "structured_init/analysis": WRITES,
    "structured_init/checks": WRITES,
    "callbacks": ("lightning_modules", "comparison"),
    "lightning_modules": ("comparison",),
    "lightning_modules/tasks": ("callbacks", CLI),
    "lightning_modules/data": ("callbacks", CLI, TASKS, NETWORKS),
    "lightning_modules/networks": ("callbacks", CLI, TASKS, DATA),
    "comparison/runs": (*NO_NETWORKS, "comparison.contrasts", "comparison.verdicts", "comparison.say"),
    "comparison/contrasts": (*NO_NETWORKS, "comparison.verdicts", "comparison.say"),
    "comparison/verdicts": (*NO_NETWORKS, "comparison.say"),
    "comparison/say": ("lightning", "callbacks", "lightning_modules", *PLAN_AND_TRAIN, "comparison.command"),
    "comparison/plan": ("comparison.train", "comparison.say", "comparison.command"),
    "comparison/train": ("comparison.say", "comparison.command"),
}
# A room that a reader can leave closed, and what alone opens it beside the public names of its package.
NETWORKS_BY_NAME = ("lightning_modules.networks", "lightning_modules.networks.factory")
CLOSED = {
    "structured_init.conv": (),
    "structured_init.impulse": (),
    "structured_init.sequence": (),
    "lightning_modules.tasks.certified": (),
    "lightning_modules.networks.lipschitz": NETWORKS_BY_NAME,
    "lightning_modules.networks.compact_transformer": (
        *NETWORKS_BY_NAME,
        "lightning_modules.tasks.language.classifier",
    ),
    "lightning_modules.networks.token_softmax": (
        *NETWORKS_BY_NAME,
        "lightning_modules.networks.compact_transformer.layers",
    ),
    "comparison.runs.elsewhere": ("comparison.runs.reading", "comparison.say.data", "comparison.command.judging"),
    "comparison.train.ray_launcher": ("comparison.command.comparing",),
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


@functools.cache
def imported(path: Path) -> set[str]:
    """The dotted names that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_no_file_imports_what_stands_above_it(room):
    files = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))
    assert files
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in files
        for name in sorted(imported(path))
        if any(below(name, package) for package in FORBIDDEN[room])
    ]
    assert found == []


@pytest.mark.parametrize("room", CLOSED)
def test_a_closed_room_is_opened_by_nothing_else(room):
    outside = {name: imported(path) for name, path in MODULES.items() if not below(name, room)}
    opened = {name for name, names in outside.items() if any(below(each, room) for each in names)}
    assert opened == set(CLOSED[room])


def test_no_files_import_one_another_in_a_circle():
    edges = {
        module: {
            target
            for name in imported(path)
            for target in (name, name.rpartition(".")[0])
            if target in MODULES and target != module
        }
        for module, path in MODULES.items()
    }
    # A package is imported for the file inside it; its own list of names is no circle.
    edges = {m: {t for t in targets if not below(m, t)} for m, targets in edges.items()}
    left = dict(edges)
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


# One interpreter, from what must import least to what may import most; it prints what is there after each.
STEPS = """
import sys
from lightning_modules.cli import main
for arguments in (["--help"], ["compare", "--help"], ["report", "--help"]):
    try:
        main(arguments)
    except SystemExit as stop:
        assert not stop.code
print("\\n>", *{name.partition(".")[0] for name in sys.modules})
from comparison.runs.records import load_results
load_results("benchmarks/results/compare_digits")
print(">", *{name.partition(".")[0] for name in sys.modules})
for name in list(sys.modules):
    if name.partition(".")[0] in ("callbacks", "lightning_modules", "comparison"):
        del sys.modules[name]
import torch
from structured_init import attention_sites, position_sites
model = torch.nn.TransformerEncoderLayer(8, 2, 8)
assert isinstance(attention_sites(model), list) and position_sites(model) == []
print(">", *{name.partition(".")[0] for name in sys.modules})
"""


def test_help_and_reading_results_import_no_torch_and_the_library_no_host_and_no_lightning():
    result = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    helped, read, library = (set(line.split()) for line in result.stdout.splitlines() if line.startswith(">"))
    assert not helped & {"torch", "pandas", "matplotlib", "lightning", "pytorch_lightning", "timm", "transformers"}
    assert not read & {"torch", "lightning", "pytorch_lightning", "timm", "transformers"}
    assert not library & {*HOSTS, "comparison"}
