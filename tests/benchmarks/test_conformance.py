"""The conformance table examines models of each library and counts them as its page says."""

from __future__ import annotations

import json

import pytest

from benchmarks import conformance
from benchmarks.conformance_models import LIBRARIES


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    with pytest.MonkeyPatch.context() as patch:
        builds = LIBRARIES["transformers"]()
        few = {name: builds[name] for name in ("llama", "falcon", "deepseek_v3")}
        patch.setitem(LIBRARIES, "transformers", lambda: few)
        assert conformance.main(["--libraries", "transformers", "--output", str(folder)]) == 0
    rows = json.loads((folder / "conformance.json").read_text())["libraries"]["transformers"]
    return {row["name"]: row for row in rows}, (folder / "conformance.md").read_text()


def test_layers_are_known_and_checked_or_have_a_reason(page):
    rows, _ = page
    assert (rows["llama"]["layers"], rows["llama"]["known"], rows["llama"]["written"]) == (2, 2, 2)
    assert (rows["falcon"]["layers"], rows["falcon"]["known"], rows["falcon"]["written"]) == (2, 2, 0)
    assert rows["falcon"]["error"] < 1e-5
    assert rows["falcon"]["mimetic"] == "yes"
    assert (rows["deepseek_v3"]["layers"], rows["deepseek_v3"]["known"]) == (2, 0)
    assert "put together from several linear maps" in rows["deepseek_v3"]["reasons"][0]


def test_the_page_counts_models_with_attention_alone(page):
    _, text = page
    assert "67 %**, all layers found and checked in 2 of 3 models" in text
    assert "- deepseek_v3: its keys are put together" in text
