"""The library alone needs few packages; what needs an extra says so in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

from structured_init.errors import missing_extra

# An interpreter in which nothing can be imported but what `pip install structured-init` brings.
ALONE = """
import importlib.abc, importlib.metadata as metadata, re, sys

def needed(name, seen):
    for line in metadata.requires(name) or []:
        other = re.match(r"[\\w.-]+", line)[0].lower().replace("_", "-")
        if "extra ==" not in line and other not in seen:
            try:
                metadata.distribution(other)
            except metadata.PackageNotFoundError:  # of another platform
                continue
            seen.add(other)
            needed(other, seen)
    return seen

allowed = needed("structured-init", set())
owners = metadata.packages_distributions()

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        owned = {owner.lower().replace("_", "-") for owner in owners.get(top, [])}
        if owned and not owned & (allowed | {"structured-init"}):
            raise ModuleNotFoundError(f"No module named '{top}'", name=top)

sys.meta_path.insert(0, Refuse())
"""


def alone(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True, check=False)


def test_the_library_alone_needs_eight_packages_or_fewer():
    needed = [each for each in metadata.requires("structured-init") if "extra ==" not in each]
    assert 0 < len(needed) <= 8


def test_the_library_alone_initializes_audits_and_captures():
    done = alone("""
import torch, structured_init
from structured_init import initialize
from structured_init.analysis import audit, capture_attention

for name in structured_init.__all__:
    getattr(structured_init, name)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
tokens = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
initialize(model, "mimetic_host{positions=keep}", seed=0)
audit(model)
print(*[tuple(maps.shape) for maps in capture_attention(model, tokens).values()])
""")
    assert done.stdout == "(2, 2, 5, 5)\n", done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from callbacks import InitCallback", "callbacks.InitCallback needs lightning: {lightning}"),
        (
            "from lightning_modules import LanguageModel",
            "lightning_modules.LanguageModel needs torchmetrics: {lightning}",
        ),
        ("from structured_init.analysis import CKA", "structured_init.analysis.CKA needs torchmetrics: {lightning}"),
    ],
)
def test_a_name_without_its_extra_says_what_to_install(code, said):
    done = alone(code)
    said = said.format(lightning="pip install 'structured-init[lightning]'")
    assert done.stderr.strip().splitlines()[-1] == f"structured_init.errors.MissingExtraError: {said}"


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["fit", "-c", "vit_digits"], "lightning"),
        (["compare", "-c", "vit_digits", "--inits", "default", "--output", "runs"], "compare"),
        (["report", "runs"], "compare"),
    ],
)
def test_a_command_without_its_extra_is_answered_in_one_line(command, extra):
    done = alone(f"from lightning_modules.cli import main\nmain({command})")
    assert done.returncode == 2, done.stderr
    install = rf"pip install 'structured-init\[{extra}\]'"
    assert re.fullmatch(rf"structured-init: error: structured-init {command[0]} needs [\w-]+: {install}\n", done.stderr)


def test_a_module_of_the_users_that_is_missing_is_no_matter_of_extras():
    error = ModuleNotFoundError("No module named 'my_net'", name="my_net")
    assert missing_extra(error, "structured-init fit", "lightning") is None
