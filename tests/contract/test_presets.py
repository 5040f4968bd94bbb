"""Every shipped initialization builds from its file and serves some host; the file's values are the object's."""

from __future__ import annotations

import warnings

import pytest
import yaml
from jsonargparse import ArgumentError, ArgumentParser

import structured_init
from lightning_modules.cli.config_names import shipped_configs
from structured_init import Compose, Impulse, Initializer, StructuredInitError, initialize

PRESETS = {name: path for name, path in shipped_configs().items() if name.startswith("init/")}
NEEDS_A_PATH = {"init/covariance_learned"}


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
    if name in NEEDS_A_PATH:
        with pytest.raises((StructuredInitError, ArgumentError), match="covariances"):
            built(parser, name)
        return
    initializer = built(parser, name)
    assert_holds(initializer, yaml.safe_load(PRESETS[name].read_text(encoding="utf-8"))["init"]["initializer"])
    for part in members(initializer):
        if isinstance(part, Impulse):
            part.kernel_size = 3  # the hosts' grids are 4×4
            if hasattr(part.solver, "iterations"):
                part.solver.iterations = 2  # what 10,000 give is tested elsewhere
        if hasattr(part, "iterations"):
            part.iterations = 2
    if initializer.needs_batch or initializer.needs_batches:
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
