"""Shipped configurations: what their names stand for, and how files are layered."""

from __future__ import annotations

import importlib
import inspect
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

import callbacks
import structured_init
from lightning_modules import data
from lightning_modules.cli import main
from lightning_modules.cli.configurations import (
    SHIPPED,
    config_names,
    expand,
    find_config,
    merged,
    shipped_configs,
)
from structured_init import StructuredInitError

CONFIGS = shipped_configs()
# What every shipped name resolved to when published numbers were measured with it: a file that is layered over another,
# and a preset that leaves an argument to its class, resolve to the same values, also after a default of a class has
# changed. Of tiny Shakespeare the batch is that of the small experiments; they gave it themselves.
MEASURED = json.loads(Path(__file__).with_name("measured_configs.json").read_text(encoding="utf-8"))


def parsed(*names):
    """The configuration that the command line makes of the files, without building anything."""
    out = io.StringIO()
    layers = [argument for name in names for argument in ("-c", name)]
    with redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main(["fit", *layers, "--print_config"])
    assert stop.value.code in (0, None)
    return yaml.safe_load(out.getvalue())


def assert_within(part, whole):
    """Every value written in a file is in the result, class names by their last part."""
    for key, value in part.items():
        if isinstance(value, dict):
            assert_within(value, whole[key])
        elif key == "class_path":
            assert whole[key].rpartition(".")[2] == value.rpartition(".")[2]
        elif not isinstance(value, list):
            assert whole[key] == value, key


def defaults(class_path):
    """The default of every argument of a class; of its base classes too where it hands on what it does not know."""
    module, _, name = class_path.rpartition(".")
    places = [importlib.import_module(module or "lightning_modules"), data, structured_init, callbacks]
    cls = next(getattr(place, name) for place in places if hasattr(place, name))
    found = {}
    for each in cls.__mro__:
        arguments = inspect.signature(vars(each)["__init__"]).parameters if "__init__" in vars(each) else {}
        for key, value in arguments.items():
            if value.default is not value.empty:
                found.setdefault(key, value.default)
        if arguments and not any(value.kind is value.VAR_KEYWORD for value in arguments.values()):
            break
    return found


def with_defaults(node):
    """A part of a configuration, in which every class has all its arguments."""
    if isinstance(node, list | tuple):
        return [with_defaults(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {key: with_defaults(value) for key, value in node.items()}
    if "class_path" in node:
        node["init_args"] = with_defaults(defaults(node["class_path"])) | node.get("init_args", {})
    return node


def resolved(content):
    whole = with_defaults(content)
    if "trainer" in whole:
        whole["trainer"] = defaults("lightning.pytorch.Trainer") | whole["trainer"]
    return whole


def content(name):
    return find_config(name).content()


def test_every_name_resolves_to_the_values_that_were_measured():
    assert MEASURED.keys() == set(config_names())
    for name, measured in MEASURED.items():
        assert resolved(content(name)) == resolved(measured), name


@pytest.mark.parametrize(
    "names",
    [
        ["mamba2_mqar_short"],
        ["llama_modern_short", "token_mixing/canon"],
        ["vit_cifar10", "optim/muon"],
        ["vit_cifar10", "init/mimetic_paper"],
    ],
    ids=lambda names: names[-1],
)
def test_the_command_line_reads_what_the_layers_say(names):
    """The later one wins; an initialization sets nothing that an experiment does."""
    both = parsed(*names)
    assert_within(content(names[-1]), both)
    if names[-1].startswith("init/"):
        assert_within(content(names[0]), both)
        assert both["attention"]["enabled"]


PUBLISHED = {
    "vit_cifar10": """
model: {init_args: {warmup_epochs: 10, warmup_lr: 1.0e-5, min_lr: 1.0e-6, label_smoothing: 0.1,
  optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.001, eps: 0.001, weight_decay: 0.01}}}}
data: {init_args: {batch_size: 512, rand_augment: rand-m9-mstd0.5-inc1, crop_scale: null}}
trainer: {max_epochs: 200, gradient_clip_val: 3.0}
""",
    # locuslab/convmixer-cifar10, README: the line of 92.5 %
    "convmixer_cifar10": """
model: {init_args: {lr_schedule: [[0, 0], [0.4, 1], [0.8, 0.05], [1, 0]], decay_all: true,
  label_smoothing: 0.0, mixup: 0.0, cutmix: 0.0,
  optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.05, weight_decay: 0.005}}}}
data: {init_args: {batch_size: 512, mean: [0.4914, 0.4822, 0.4465], std: [0.2471, 0.2435, 0.2616]}}
trainer: {max_epochs: 25, gradient_clip_val: null}
""",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_numbers_change_nothing_where_they_are_layered_over_the_experiment(name):
    recipe = resolved(content(name))
    assert merged(recipe, yaml.safe_load(PUBLISHED[name])) == recipe


def test_a_shipped_file_is_found_by_any_of_its_names_and_one_of_the_users_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("vit_digits", "experiment/vit_digits", "vit_digits.yaml"):
        assert find_config(name).file == SHIPPED / "experiment" / "vit_digits.yaml"
    (tmp_path / "vit_digits").write_text("seed_everything: 3")
    assert find_config("vit_digits").content() == {"seed_everything": 3}


def test_a_configuration_is_replaced_by_what_it_says_and_nothing_else_is_touched():
    said = expand(["fit", "--x", "init/mimetic", "-c", "optim/adamw", "--config=init/mimetic", "--plan", "--y"])
    adamw = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.001}}
    init = {"init": {"initializer": {"class_path": "Mimetic"}}}
    layers = [
        word for each in ({"model": {"init_args": {"optimizer": adamw}}}, {}) for word in ("--config", json.dumps(each))
    ]
    assert said == ["fit", "--config", json.dumps(init), "--x", "init/mimetic", *layers, "--plan=true", "--y"]


def test_the_users_files_are_layered_too_by_path_or_by_name(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("layers: data/digits\nmodel: {init_args: {warmup_epochs: 3}}\n")
    (tmp_path / "mine.yaml").write_text(
        "trainer: {max_epochs: 2}\nlayers:\n  - vit_cifar10\n  - base.yaml\nseed_everything: 5\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    both = parsed(str(tmp_path / "mine.yaml"))
    assert both["data"]["init_args"]["name"] == "digits"
    assert both["data"]["init_args"]["rand_augment"]
    assert both["model"]["init_args"]["warmup_epochs"] == 3
    assert (both["trainer"]["max_epochs"], both["trainer"]["gradient_clip_val"], both["seed_everything"]) == (2, 3.0, 5)


def test_a_file_that_is_layered_over_itself_or_over_nothing_known_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("layers: [b.yaml]")
    (tmp_path / "b.yaml").write_text("layers: [a.yaml]")
    with pytest.raises(StructuredInitError, match=r"a.yaml' includes itself: remove it from 'layers'$"):
        expand(["fit", "-c", str(tmp_path / "a.yaml")])
    (tmp_path / "b.yaml").write_text("layers: [data/cifr10]")
    with pytest.raises(StructuredInitError, match="did you mean 'data/cifar10'"):
        expand(["fit", "-c", str(tmp_path / "a.yaml")])


def test_a_dictionary_that_is_one_argument_is_replaced_and_a_class_merged_with_itself_alone():
    below = {"model": {"class_path": "A", "init_args": {"network_args": {"x": 1}, "lr": 1}}, "trainer": {"devices": 1}}
    above = {"model": {"init_args": {"network_args": {"y": 2}}}, "trainer": {"max_epochs": 3}}
    assert merged(below, above) == {
        "model": {"class_path": "A", "init_args": {"network_args": {"y": 2}, "lr": 1}},
        "trainer": {"devices": 1, "max_epochs": 3},
    }
    assert merged(below, {"model": {"class_path": "B"}})["model"] == {"class_path": "B"}
    same = merged(below, {"model": {"class_path": "A", "init_args": {"lr": 2}}})
    assert same["model"]["init_args"] == {"network_args": {"x": 1}, "lr": 2}


def test_braces_give_arguments_to_the_initializer():
    given = {"class_path": "FilterCovariance", "init_args": {"normalize": "trace", "frozen": True}}
    for before in ("covariance", "init/covariance", "init/covariance.yaml", str(CONFIGS["init/covariance"])):
        said = expand(["fit", "-c", before + "{normalize=trace,frozen=true}"])
        assert json.loads(said[2]) == {"init": {"initializer": given}}


def test_what_sets_no_initializer_has_no_control():
    with pytest.raises(StructuredInitError, match=r"canon.yaml' sets no initializer, so no control of it can be made"):
        expand(["fit", "-c", "token_mixing/canon_scrambled"])
