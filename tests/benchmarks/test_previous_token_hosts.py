"""The table of previous tokens and induction holds what a recorder of its own sees beside what the report says."""

from __future__ import annotations

import json

import torch

from benchmarks import previous_token_hosts
from benchmarks.previous_token_hosts import build, recorded, share_on


def test_a_row_has_what_is_said_and_what_is_measured(tmp_path):
    arguments = ["--only", "gpt2, 64 wide", "--output", str(tmp_path / "new")]
    assert previous_token_hosts.main(arguments) == 0
    rows = json.loads((tmp_path / "new" / "previous_token_hosts.json").read_text())["hosts"]
    first, second = (rows["gpt2, 64 wide"][name] for name in ("PreviousToken", "Induction"))
    assert first["h.0.attn"]["how"] == "measured"
    assert abs(first["h.0.attn"]["said"] - first["h.0.attn"]["measured"]) < 0.1
    assert set(second) == {"h.1.attn"}
    page = (tmp_path / "new" / "previous_token_hosts.md").read_text()
    assert "| gpt2, 64 wide | h.0.attn |" in page
    assert "| gpt2, 64 wide | h.1.attn |" in page


def test_the_recorder_shows_the_hosts_own_maps_in_which_offsets_are_counted():
    torch.manual_seed(0)
    maps = recorded(build("gpt2", {}), torch.randint(5, 400, (2, 128)))["h.0.attn"]
    assert torch.allclose(maps.sum(-1), torch.ones(2, 4, 128), atol=1e-5)
    assert share_on(torch.eye(8).roll(-3, dims=0)[None], 3) == 0
    assert share_on(torch.eye(8).roll(3, dims=0)[None], 3) == 1
    assert share_on(torch.eye(8).roll(3, dims=0)[None], 2) == 0
