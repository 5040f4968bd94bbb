"""Structured starts of text models: what reaches the weights, and what the report says of the host."""

from __future__ import annotations

import torch

from structured_init import Mimetic, attention_sites, initialize


def test_the_hosts_scale_for_depth_is_replaced_and_the_report_says_so(language_model):
    model = language_model("gpt2")
    mlp = {name: value.clone() for name, value in model.state_dict().items() if ".mlp.c_proj" in name}
    start = Mimetic(query_key=False, vo_alpha=0.0, vo_sign=1, positions="keep")
    report = initialize(model, start, seed=0)
    for site in attention_sites(model):
        value_output = torch.einsum("hdk,hko->do", site.value, site.output)
        torch.testing.assert_close(value_output, 0.4 * torch.eye(16), atol=1e-5, rtol=0)
    said = "the host draws the output projection 1/√4 smaller, for its depth: what is written is not made smaller"
    assert said in " ".join(str(report).split())
    for name, value in mlp.items():  # those of the MLPs keep the host's scaled start
        assert torch.equal(model.state_dict()[name], value)
