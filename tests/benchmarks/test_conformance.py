"""The conformance table examines models of each library and counts them as its page says."""

from __future__ import annotations

import json

import pytest
import torch

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
    assert rows["falcon"]["mimetic"] is True
    assert rows["falcon"]["capture"]["compared"] == rows["falcon"]["capture"]["maps"] == 2
    assert rows["falcon"]["capture"]["difference"] < 1e-6
    assert (rows["deepseek_v3"]["layers"], rows["deepseek_v3"]["known"]) == (2, 0)
    assert "put together from several linear maps" in rows["deepseek_v3"]["reasons"][0]


def test_the_page_counts_models_with_attention_alone(page):
    _, text = page
    assert "67 %**, all layers found and checked in 2 of 3 models" in text
    assert "- deepseek_v3: its keys are put together" in text


def test_maps_are_compared_with_the_nearest_of_the_host_s_and_a_wrong_one_is_seen():
    maps = torch.rand(2, 1, 3, 5, 5).softmax(-1)
    sink = torch.cat([maps[1], torch.zeros(1, 3, 5, 1)], -1)
    assert conformance.compared({"a": maps[0], "b": maps[1]}, [maps[0].flatten(0, 1), sink]) == (2, 0.0)
    number, difference = conformance.compared({"a": maps[0].mT, "b": maps[1]}, [maps[0]])
    assert number == 1
    assert difference > 1e-3
    assert conformance.compared({"a": maps[0]}, [torch.ones(2, 2)]) == (0, 0.0)
    windows = torch.rand(4, 3, 5, 5)  # the host has heads in front of windows
    assert conformance.compared({"a": windows}, [windows.transpose(0, 1)]) == (1, 0.0)
