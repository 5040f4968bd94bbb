"""Structured starts of text models: what reaches the weights, and what the report says of the host."""

from __future__ import annotations

import math

import pytest
import torch

from structured_init import Mimetic, attention_sites, initialize


@pytest.mark.parametrize(
    ("choice", "factor", "words"),
    [("replace", 1.0, "what is written is not made smaller"), ("keep", 1 / math.sqrt(4), "so is what is written")],
)
def test_the_hosts_scale_for_depth_is_replaced_or_kept_and_the_report_says_so(choice, factor, words, language_model):
    model = language_model("gpt2")
    mlp = {name: value.clone() for name, value in model.state_dict().items() if ".mlp.c_proj" in name}
    start = Mimetic(query_key=False, vo_alpha=0.0, vo_sign=1, positions="keep", residual_scale=choice)
    report = initialize(model, start, seed=0)
    for site in attention_sites(model):
        value_output = torch.einsum("hdk,hko->do", site.value, site.output)
        torch.testing.assert_close(value_output, 0.4 * factor * torch.eye(16), atol=1e-5, rtol=0)
    assert f"the host draws the output projection 1/√4 smaller, for its depth: {words}" in " ".join(str(report).split())
    for name, value in mlp.items():  # those of the MLPs keep the host's scaled start
        assert torch.equal(model.state_dict()[name], value)
