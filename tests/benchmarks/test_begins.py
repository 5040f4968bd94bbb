"""The page of what begins wrongly in other libraries names file and line, and calls no guess a defect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import begins
from benchmarks.conformance_models import transformers_with_heads


class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(64))

    def forward(self, x):
        return x * self.gate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begins")
    with pytest.MonkeyPatch.context() as patch:
        builds = transformers_with_heads()
        patch.setitem(begins.MODELS, "transformers", lambda: {name: builds[name] for name in ("gpt2", "data2vec-text")})
        patch.setitem(begins.MODELS, "timm", lambda: {"planted": lambda: (Planted(), torch.ones(64))})
        own = ["--rows", str(folder / "rows.json"), "--libraries", "transformers", "timm"]
        assert begins.main([*own, "--output", str(folder)]) == 0
    return folder


def test_a_defect_of_a_released_library_is_confirmed_and_has_file_and_line(folder):
    rows = json.loads((folder / "rows.json").read_text())
    assert rows["transformers/gpt2"]["failures"] == {}
    made, writes, bare = rows["transformers/data2vec-text"]["places"]["lm_head.bias"]
    assert bare
    packages = Path(torch.__file__).parents[1]
    for place, text in ((made, "self.bias = nn.Parameter(torch.zeros("), (writes, "def _init_weights(")):
        file, number = place.split(":")
        assert text in (packages / file).read_text().splitlines()[int(number) - 1]


def test_the_page_calls_nothing_a_defect_that_is_not_confirmed(folder):
    text = (folder / "begins.md").read_text()
    defects, _, rest = text.partition("## Unconfirmed")
    assert "lm_head.bias: 120 of 120 not written" in defects
    assert "planted" not in defects
    assert "gate: 64 of 64 numbers were never written" in rest
    assert "1 pass every" in text
    assert json.loads((folder / "begins.json").read_text())["passed"] == ["transformers/gpt2"]
