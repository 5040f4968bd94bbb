"""The library alone needs few packages; what needs an extra says so in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata

from structured_init.util.errors import missing_extra

# An interpreter in which nothing can be imported but what `pip install structured-init` brings.
ALONE = """
import importlib.abc, importlib.metadata as metadata, re, sys
import torch._dynamo  # looks for packages that it does without

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


# What the library can do alone, and what is said where more is needed.
TRIED = """
import contextlib, io, json, torch, structured_init
from structured_init import initialize
from structured_init.analysis import audit, capture_attention
from lightning_modules.cli import main

for name in structured_init.__all__:
    getattr(structured_init, name)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
tokens = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
initialize(model, "mimetic{positions=keep}", seed=0)
audit(model)
seen = {"maps": [tuple(maps.shape) for maps in capture_attention(model, tokens).values()]}
for line in sys.argv[1:2]:
    try:
        exec(line)
    except structured_init.util.errors.MissingExtraError as error:
        seen[line] = str(error)
for command in sys.argv[2:]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main(command.split())
        except SystemExit as stop:
            seen[command] = [stop.code, said.getvalue()]
print(json.dumps(seen))
"""


def test_the_library_alone_needs_eight_packages_or_fewer():
    needed = [each for each in metadata.requires("structured-init") if "extra ==" not in each]
    assert 0 < len(needed) <= 8


def test_the_library_alone_initializes_audits_and_captures_and_all_else_says_what_to_install():
    line = "from callbacks import InitCallback"
    extras = {
        "fit -c vit_digits": "lightning",
        "compare -c vit_digits --inits default --output runs": "compare",
        "report runs": "compare",
    }
    command = [sys.executable, "-c", ALONE + TRIED, line, *extras]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("maps") == [[2, 2, 5, 5]]
    install = "pip install 'structured-init[lightning]'"
    assert seen.pop(line) == f"callbacks.InitCallback needs lightning: {install}"
    assert seen.keys() == extras.keys()
    for words, extra in extras.items():
        code, said = seen[words]
        assert code == 2
        needs = rf"structured-init {words.split()[0]} needs [\w-]+: pip install 'structured-init\[{extra}\]'"
        assert re.fullmatch(f"structured-init: error: {needs}\n", said)


def test_a_module_of_the_users_that_is_missing_is_no_matter_of_extras():
    error = ModuleNotFoundError("No module named 'my_net'", name="my_net")
    assert missing_extra(error, "structured-init fit", "lightning") is None
