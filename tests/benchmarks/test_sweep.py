"""Initializations of the ablations: every file parses, says its control, and differs from that in its part alone."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import yaml

import structured_init
from comparison.command import compare_parser
from comparison.run.arms import parse_arms
from lightning_modules.cli import main
from lightning_modules.cli.configurations import find_config
from structured_init import initialize

FOLDER = Path(__file__).parents[2] / "benchmarks" / "initializations"
SWEEP = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
WHITENING = {path.stem: path for path in sorted(FOLDER.glob("whitening/*.yaml"))}
INITIALIZATIONS = [name for name in SWEEP if not name.startswith(("codes", "gaussian"))]


def initializer_of(path):
    return find_config(str(path)).content()["init"]["initializer"]


def built(node):
    """An object as the YAML says, with no steps of optimization: they change no position."""
    if isinstance(node, list):
        return [built(item) for item in node]
    if not isinstance(node, dict):
        return node
    arguments = {name: built(value) for name, value in node.get("init_args", {}).items()}
    if node["class_path"] == "AdamSolver":
        arguments["iterations"] = 0
    elif arguments.get("solver") == "adam":
        arguments["solver"] = structured_init.AdamSolver(iterations=0)
    return getattr(structured_init, node["class_path"])(**arguments)


def test_every_value_that_was_asked_for_is_there():
    values = {"kernel_size": {3}, "iterations": {10_000}, "pseudo_input": {"P"}, "strength": {8.0}, "svd gain": {18.0}}
    values["separable gain"] = {0.7}  # where nothing is said; those that are:
    for name in INITIALIZATIONS:
        arguments = initializer_of(SWEEP[name])["init_args"]
        if "solver" not in arguments:  # composed with another value–output part
            continue
        solver = arguments["solver"]
        said = dict(solver["init_args"]) if isinstance(solver, dict) else {}
        if "gain" in said:
            said[f"{name.partition('_')[0]} gain"] = said.pop("gain")
        for key, value in {**said, "kernel_size": arguments.get("kernel_size", 3)}.items():
            values[key].add(value)
    assert values == {
        "kernel_size": {3, 5},
        "iterations": {0, 2000, 10_000},
        "pseudo_input": {"P", "U", "G", "A", "B", "batch"},
        "strength": {2.0, 4.0, 8.0, 16.0},
        "svd gain": {1.0, 6.0, 18.0},
        "separable gain": {0.35, 0.7, 1.0, 4.0},
    }


@pytest.mark.parametrize("path", [*SWEEP.values(), *WHITENING.values()], ids=lambda path: path.stem)
def test_every_file_parses(path):
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main(["fit", "-c", "vit_cifar10", "-c", "trainer/gpu", "-c", str(path), "--print_config"])
    assert stop.value.code in (0, None)
    assert path.read_text().count("#") == 1
    parsed, given = yaml.safe_load(out.getvalue())["init"]["initializer"], initializer_of(path)
    assert parsed["class_path"].endswith(f".{given['class_path']}")


def differing_from_its_control(path, tiny_vit):
    """The parameters of a small ViT in which the initialization of a file differs from its control."""
    control = re.search(r"Control: (\S+)\.\n", path.read_text()).group(1)
    models = [tiny_vit(img_size=12, class_token=False, global_pool="avg") for _ in range(2)]
    images = torch.randn(2, 3, 12, 12)
    for model, file in zip(models, (path, SWEEP.get(control) or f"init/{control}"), strict=True):
        initialize(model, built(initializer_of(file)), seed=1, batch=images)
    states = [model.state_dict() for model in models]
    return {key for key, value in states[0].items() if not torch.equal(value, states[1][key])}


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_an_initialization_differs_from_its_control_in_attention_alone(tiny_vit, name):
    parts = (
        ("qkv.weight", "proj.weight")
        if name in ("separable_spare", "separable_values", "separable_weak")
        else ("qkv.weight",)
    )
    expected = {f"blocks.{layer}.attn.{part}" for layer in range(2) for part in parts}
    assert differing_from_its_control(SWEEP[name], tiny_vit) == expected


@pytest.mark.parametrize("path", WHITENING.values(), ids=WHITENING)
def test_whitening_differs_from_its_control_in_the_patch_embedding_alone(tiny_vit, path):
    expected = {"patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert differing_from_its_control(path, tiny_vit) == expected


def test_the_documented_command_runs_all_of_them(monkeypatch):
    text = (FOLDER.parents[1] / "docs" / "benchmarks.md").read_text()
    command = re.search(r"structured-init compare ((?:[^`\\]|\\\n)*initializations/(?:[^`\\]|\\\n)*)", text).group(1)
    monkeypatch.chdir(FOLDER.parents[1])
    files = ",".join(str(path.relative_to(Path.cwd())) for path in sorted(FOLDER.glob("*.yaml")))
    spelled = command.replace("\\\n", " ").replace("$(echo benchmarks/initializations/*.yaml | tr ' ' ,)", files)
    options, further = compare_parser().parse_known_args(spelled.split())
    assert set(parse_arms(options.inits)) == {"default", "sincos", "codes", *SWEEP}
    assert options.config == ["vit_cifar10", "trainer/gpu"]
    assert not further
