"""Initializations of the ablations: each says its control, and differs from it in its part alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import structured_init
from comparison.command import compare_parser
from comparison.plan.arms import parse_arms
from lightning_modules.cli.configurations import find_config
from structured_init import initialize

FOLDER = Path(__file__).parents[2] / "benchmarks" / "initializations"
QUERIES_AND_KEYS = {f"blocks.{layer}.attn.qkv.weight" for layer in range(2)}


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


def control_of(path):
    return re.search(r"Control: (\S+)\.\n", path.read_text()).group(1)


def test_every_file_builds_an_initializer_and_all_but_controls_say_theirs():
    paths = sorted(FOLDER.rglob("*.yaml"))
    assert len(paths) > 30
    for path in paths:
        assert isinstance(built(initializer_of(path)), structured_init.Initializer)
        if not path.stem.startswith(("codes", "gaussian")):
            control = control_of(path)
            assert (FOLDER / f"{control}.yaml").is_file() or find_config(f"init/{control}").file.is_file()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("adam_input_batch", QUERIES_AND_KEYS),
        ("separable_c4", QUERIES_AND_KEYS),
        ("svd_kernel3_random", QUERIES_AND_KEYS),
        ("separable_values", QUERIES_AND_KEYS | {f"blocks.{layer}.attn.proj.weight" for layer in range(2)}),
        ("whitening/patch_whitening_mimetic", {"patch_embed.proj.weight", "patch_embed.proj.bias"}),
    ],
)
def test_an_initialization_differs_from_its_control_in_its_part_alone(tiny_vit, name, parts):
    path = FOLDER / f"{name}.yaml"
    control = control_of(path)
    other = FOLDER / f"{control}.yaml"
    models = [tiny_vit(img_size=12, class_token=False, global_pool="avg") for _ in range(2)]
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    for model, file in zip(models, (path, other if other.is_file() else f"init/{control}"), strict=True):
        initialize(model, built(initializer_of(file)), seed=1, batch=images)
    states = [model.state_dict() for model in models]
    assert {key for key, value in states[0].items() if not torch.equal(value, states[1][key])} == parts


def test_the_documented_command_runs_all_of_them(monkeypatch):
    text = (FOLDER.parents[1] / "docs" / "contributing" / "benchmarks.md").read_text()
    command = re.search(r"structured-init compare ((?:[^`\\]|\\\n)*initializations/(?:[^`\\]|\\\n)*)", text).group(1)
    monkeypatch.chdir(FOLDER.parents[1])
    sweep = sorted(FOLDER.glob("*.yaml"))
    files = ",".join(str(path.relative_to(Path.cwd())) for path in sweep)
    spelled = command.replace("\\\n", " ").replace("$(echo benchmarks/initializations/*.yaml | tr ' ' ,)", files)
    options, further = compare_parser().parse_known_args(spelled.split())
    assert set(parse_arms(options.inits)) == {"default", "sincos", "codes", *(path.stem for path in sweep)}
    assert not further
