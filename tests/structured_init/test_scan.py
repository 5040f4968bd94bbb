"""The scans: equal to the recurrence, token by token, and to the hosts' own, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

from structured_init.ssm.scan import head_scan, selective_scan


def sequential_scan(x: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The scan by its definition, one token after another."""
    state, outputs = x.new_zeros(x.shape[0], x.shape[2], A.shape[1]), []
    for token in range(x.shape[1]):
        decay = (step[:, token, :, None] * A).exp()
        state = decay * state + (step * x)[:, token, :, None] * B[:, token, None]
        outputs.append((state * C[:, token, None]).sum(-1))
    return torch.stack(outputs, dim=1)


def drawn(*shapes):
    """x, the step, A, B and C of the host's shapes; B and C have one."""
    torch.manual_seed(0)
    x, step, A, B, C = (torch.randn(shape) for shape in (*shapes, shapes[-1]))
    return [each.requires_grad_() for each in (x, step.abs(), -A.exp(), B, C)]


def mamba_inputs(tokens=37):
    return drawn((2, tokens, 6), (2, tokens, 6), (6, 5), (2, tokens, 5))


def mamba2_inputs(tokens=37, heads=4, groups=2):
    return drawn((2, tokens, heads, 3), (2, tokens, heads), (heads,), (2, tokens, groups, 5))


def value_and_gradients(scan, inputs):
    y = scan(*inputs)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    return [y, *torch.autograd.grad((y * weight).sum(), inputs)]


def assert_equal(got, expected, tolerance=1e-5):
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * max(theirs.abs().max().item(), 1)


@pytest.mark.parametrize("mambapy", [False, True])
def test_transformers_scan_and_mambapy_s_give_the_same_in_value_and_gradient(mambapy):
    if mambapy:
        pytest.importorskip("mambapy")

    def host(x, step, A, B, C):
        turned = (each.mT for each in (x, step))
        return modeling_mamba.mamba_selective_scan(*turned, A, B.mT, C.mT, use_mambapy=mambapy).mT

    inputs = mamba_inputs()
    assert_equal(value_and_gradients(selective_scan, inputs), value_and_gradients(host, inputs))


def per_channel(x, step, A, B, C):
    """Mamba-2 as Mamba: every channel of a head by the recurrence."""
    heads = []
    for head in range(x.shape[2]):
        group = head * B.shape[2] // x.shape[2]
        steps = step[:, :, head, None].expand(-1, -1, x.shape[3])
        decays = A[head].expand(x.shape[3], B.shape[3])
        heads.append(sequential_scan(x[:, :, head], steps, decays, B[:, :, group], C[:, :, group]))
    return torch.stack(heads, dim=2)


@pytest.mark.parametrize(
    ("inputs", "scan", "recurrence"),
    [(mamba_inputs, selective_scan, sequential_scan), (mamba2_inputs, head_scan, per_channel)],
)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(tokens=st.integers(1, 20), chunk=st.integers(1, 9))
def test_a_chunked_scan_and_its_gradient_are_those_of_the_recurrence(inputs, scan, recurrence, tokens, chunk):
    given = inputs(tokens)
    found = value_and_gradients(lambda *args: scan(*args, chunk), given)
    assert_equal(found, value_and_gradients(recurrence, given))


def test_the_head_scan_and_its_gradient_are_those_of_transformers():
    inputs = mamba2_inputs()

    def host(*args):
        return modeling_mamba2.mamba2_chunk_scan(*args, chunk_size=8)

    assert_equal(value_and_gradients(head_scan, inputs), value_and_gradients(host, inputs))


def test_a_fast_decay_beside_a_slow_one_loses_no_precision():
    """Running sums in the thousands, of which only the differences matter."""
    x, step, A, B, C = mamba2_inputs(tokens=64, heads=2, groups=1)
    with torch.no_grad():
        A.copy_(torch.tensor([-60.0, -3e-4]))
        step[:, ::2] = 5
        step[:, 1::2] = 1e-5
    inputs = [x, step, A, B, C]
    assert_equal(value_and_gradients(head_scan, inputs)[:1], value_and_gradients(per_channel, inputs)[:1])
