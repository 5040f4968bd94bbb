"""transformers' Mamba and Mamba-2 with chunked scans: the same layers."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

from lightning_modules.networks import state_space
from lightning_modules.networks.state_space import use_chunked_scan
from structured_init import state_space_sites
from structured_init.analysis import capture_attention

SMALL = {"vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 2, "state_size": 4, "use_bias": True}


def mamba():
    return MambaForCausalLM(MambaConfig(**SMALL))


def mamba2(**changes):
    sizes = {"num_heads": 4, "head_dim": 6, "n_groups": 2, "chunk_size": 8}
    return Mamba2ForCausalLM(Mamba2Config(**{**SMALL, **sizes, **changes}))


@pytest.mark.parametrize("build", [mamba, mamba2, lambda: mamba2(time_step_limit=(0.01, 0.05))])
def test_the_chunked_layers_compute_what_the_host_does_and_the_same_gradients(build):
    torch.manual_seed(0)
    host = build()
    chunked = use_chunked_scan(copy.deepcopy(host))
    ids = torch.randint(11, (3, 21))
    losses = [model(ids, labels=ids).loss for model in (host, chunked)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    for loss in losses:
        loss.backward()
    for (name, ours), (other, theirs) in zip(chunked.named_parameters(), host.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_under_autocast_the_scan_stays_in_float32(build, monkeypatch):
    torch.manual_seed(0)
    model, seen = use_chunked_scan(build()), []
    for name in ("selective_scan", "head_scan"):
        scan = getattr(state_space, name)

        def watched(*args, scan=scan):
            seen.append((torch.is_autocast_enabled("cpu"), {each.dtype for each in args}))
            return scan(*args)

        monkeypatch.setattr(state_space, name, watched)
    ids = torch.randint(11, (2, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, labels=ids).loss
    assert seen == 2 * [(False, {torch.float32})]
    loss.backward()
    torch.testing.assert_close(loss, model(ids, labels=ids).loss, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_what_is_known_of_the_host_s_classes_is_known_of_the_chunked_ones(build):
    model = use_chunked_scan(build())
    assert len(state_space_sites(model)) == 2
    ids = torch.randint(11, (2, 7))
    host = build()
    host.load_state_dict(model.state_dict())
    for ours, theirs in zip(*(capture_attention(each, ids).values() for each in (model, host)), strict=True):
        torch.testing.assert_close(ours, theirs)
