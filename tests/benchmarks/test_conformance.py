"""The conformance table examines models of each library and counts them as its page says."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from benchmarks import conformance
from benchmarks.conformance_models import LIBRARIES, calibrate


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
    assert rows["falcon"]["mlps"] == [2, 2]
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


class Mixing(nn.Module):
    """Two heads, in one product or one after the other, whose maps are mixed behind the softmax."""

    num_heads = 2

    def __init__(self, apart):
        super().__init__()
        self.apart = apart

    def forward(self, x):
        heads = x.unflatten(-1, (2, -1)).movedim(-2, 1)
        maps = (heads @ heads.mT).softmax(-1)
        if self.apart:  # the map stands on the right, and has as many numbers as the values
            return torch.cat([h.mT @ (h @ h.mT).softmax(-1).mT for h in heads.unbind(1)], 1)
        return maps.flip(1).mul(0.5).add(maps.mul(0.5)) @ heads


@pytest.mark.parametrize("apart", [False, True])
def test_what_the_host_shows_is_the_factor_of_the_values_and_not_the_softmax(apart):
    host, x = Mixing(apart), torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    heads = x.unflatten(-1, (2, -1)).movedim(-2, 1)
    softmax = (heads @ heads.mT).softmax(-1)
    expected = softmax if apart else softmax.mean(1, keepdim=True).expand_as(softmax)
    shown = conformance.eager_maps(host, (x,), {})
    assert conformance.compared({"attn": expected}, shown) == (1, pytest.approx(0, abs=1e-6))
    assert conformance.compared({"attn": softmax.mT}, shown)[1] > 0.1
    if not apart:
        assert conformance.compared({"attn": softmax}, shown)[1] > 0.1


def test_batch_norms_of_a_random_model_get_the_statistics_of_the_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    batch = torch.randn(8, 3)
    calibrate(model, (batch,), {})
    torch.testing.assert_close(model[1].running_mean, model[0](batch).mean(0))
    assert not model[1].training
    assert model[1].momentum == 0.1


def test_models_that_are_not_run_again_keep_their_rows(tmp_path):
    row = {"name": "a", "unbuilt": "why"}
    for rows in ([row, {"name": "b", "unbuilt": "old"}], [{"name": "b", "unbuilt": "new"}]):
        conformance.write(tmp_path, {"versions": {"timm": "1"}, "libraries": {"timm": rows}})
    assert json.loads((tmp_path / "conformance.json").read_text())["libraries"] == {
        "timm": [row, {"name": "b", "unbuilt": "new"}]
    }
