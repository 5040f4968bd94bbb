"""What every shipped name resolves to, against the configurations that published numbers were measured with.

``measured_configs.json`` holds the files of version 07d003a in full. A file that is layered over another, a preset that
leaves an argument to its class, and a variant that is a name alone resolve to the same values, also after a default of
a class has changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonargparse import ActionConfigFile

from callbacks import InitCallback
from comparison.run.resolve import ParseOnly
from lightning_modules.cli.config_names import config_names, expand, read_config
from lightning_modules.cli.lightning_cli import Parser

MEASURED = json.loads(Path(__file__).with_name("measured_configs.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def resolve():
    """Return every value that a command line gives: of ``fit``, and of the section ``init`` alone, which is faster."""
    whole, init = ParseOnly(expand(["fit", "-c", "vit_digits"])).parser, Parser()
    init.add_argument("-c", action=ActionConfigFile)
    init.add_lightning_class_args(InitCallback, "init")

    def values(name, *words):
        parser = init if name.startswith("init/") else whole
        words = words if parser is init else ("fit", "-c", "cct_2_3x2_cifar10_short", *words)
        words = ("fit", *words[-2:]) if name.startswith("experiment/") else words
        parsed = parser.parse_args(expand(list(words)))
        return yaml.safe_load(parser.dump(parsed, skip_none=False, skip_validation=True))

    return values


@pytest.mark.parametrize("name", MEASURED)
def test_a_name_resolves_to_the_values_that_were_measured(name, resolve, tmp_path):
    (tmp_path / "measured.yaml").write_text(json.dumps(MEASURED[name]))
    (tmp_path / "read.yaml").write_text(json.dumps(read_config(name)))
    resolved = resolve(name, "-c", name)
    assert resolved == resolve(name, "-c", str(tmp_path / "measured.yaml"))
    assert resolved == resolve(name, "-c", str(tmp_path / "read.yaml"))  # layered as the command line does it


def test_no_name_was_lost():
    assert MEASURED.keys() <= set(config_names())
