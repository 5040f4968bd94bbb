"""Every shipped initialization builds from its file and serves some host; the file's values are the object's."""

from __future__ import annotations

import warnings

import pytest
import yaml
from jsonargparse import ArgumentParser

import structured_init
from lightning_modules.cli.configurations import shipped_configs
from structured_init import (
    Compose,
    Impulse,
    Initializer,
    Mimetic,
    Scrambled,
    SpatialFilters,
    StructuredInitError,
    initialize,
    preset,
)

PRESETS = {name: path for name, path in shipped_configs().items() if name.startswith("init/")}


@pytest.fixture(scope="module")
def parser():
    """What the command line does with the section ``init.initializer``, without the rest of the command line."""
    for name in structured_init.__all__:
        getattr(structured_init, name)  # imported, so that its bare name is known
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--initializer", type=Initializer)
    return parser


def built(parser, name):
    given = {"initializer": yaml.safe_load(PRESETS[name].read_text(encoding="utf-8"))["init"]["initializer"]}
    return parser.instantiate(parser.parse_object(given)).initializer


def members(initializer):
    return initializer.initializers if isinstance(initializer, Compose) else [initializer]


def assert_holds(initializer, given):
    """The object is of the class that the file names and holds the values that it gives."""
    assert type(initializer).__name__ == given["class_path"].rpartition(".")[2]
    for key, value in given.get("init_args", {}).items():
        held = getattr(initializer, key)
        if isinstance(value, dict) and "class_path" in value:
            assert_holds(held, value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for each, wanted in zip(held, value, strict=True):
                assert_holds(each, wanted)
        else:
            assert held == value, key


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_builds_what_its_file_says_and_serves_some_host(name, parser, hosts):
    initializer = built(parser, name)
    assert repr(preset(name.removeprefix("init/"))) == repr(initializer)
    assert_holds(initializer, yaml.safe_load(PRESETS[name].read_text(encoding="utf-8"))["init"]["initializer"])
    for part in members(initializer):
        if isinstance(part, Impulse):
            part.kernel_size = 3  # the hosts' grids are 4×4
            if hasattr(part.solver, "iterations"):
                part.solver.iterations = 2  # what 10,000 give is tested elsewhere
    if initializer.needs_batch:
        return
    refused = []
    for host in hosts.values():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                initialize(host.build(), initializer)
            return
        except StructuredInitError as error:
            refused.append(str(error))
    pytest.fail("\n".join(refused))


def test_braces_controls_and_files_of_ones_own_are_presets_too(tmp_path):
    assert repr(preset("impulse{kernel_size=5}")) == repr(Impulse(kernel_size=5, solver="separable"))
    assert preset("codes{gain=1e-05,kappa=0.1}").gain == 1e-5  # a number in YAML 1.2, and in Python
    assert preset("mimetic{where=3e4abc}").where == "3e4abc"
    assert repr(preset("filters_random{filters=box,frozen=true}")) == repr(SpatialFilters(filters="box", frozen=True))
    assert repr(preset("mimetic_scrambled{vo_beta=0.2}")) == repr(Scrambled(Mimetic(vo_beta=0.2)))
    own = tmp_path / "mine.yaml"
    own.write_text("init: {initializer: {class_path: structured_init.Mimetic, init_args: {qk_alpha: 1.5}}}")
    assert repr(preset(str(own))) == repr(Mimetic(qk_alpha=1.5))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: preset("/tmp/none.yaml"), "there is no initialization '/tmp/none.yaml': there is no such file"),
        (lambda: preset("mimtic"), "there is no initialization 'mimtic': did you mean 'mimetic'?"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest(wrong, said):
    with pytest.raises(StructuredInitError) as error:
        wrong()
    assert str(error.value).startswith(said)
