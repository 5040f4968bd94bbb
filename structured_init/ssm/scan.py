"""The scans of Mamba and of Mamba-2 on a CPU, chunk by chunk.

h_t = exp(Δ_t A) h_{t−1} + Δ_t x_t B_tᵀ, y_t = h_t C_t: in Mamba for every channel and state with a decay of its own,
whose gradient is written out; in Mamba-2 with one decay a head, which makes every chunk a few matrix products.

Letters: B batch, L tokens, I channels, N states; H heads, P head_dim, G groups, c chunks of T tokens.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

CHUNK, HEAD_CHUNK = 8, 32  # tokens whose states fit a processor's cache; measured in benchmarks/results/scan_speed.md


def selective_scan(
    x: Float[Tensor, "B L I"],
    step: Float[Tensor, "B L I"],
    A: Float[Tensor, "I N"],
    B: Float[Tensor, "B L N"],
    C: Float[Tensor, "B L N"],
    chunk: int = CHUNK,
) -> Float[Tensor, "B L I"]:
    """Return y (B, L, I) of Mamba's scan (2312.00752, algorithm 2), from a zero state.

    The states of a chunk are computed in place, token after token, and only the state between chunks is kept for the
    gradient, which computes the chunk's states again: what a fused kernel does on a GPU.
    """
    return _SelectiveScan.apply(x, step, A, B, C, chunk)


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int) -> Tensor:
        # Tokens first: what happens at one token is then one contiguous block.
        first = [each.transpose(0, 1).contiguous() for each in (x, step, B, C)]
        state = x.new_zeros(x.shape[0], x.shape[2], A.shape[1])
        output, carried = torch.empty_like(first[0]), []
        for start in range(0, x.shape[1], chunk):
            part = slice(start, start + chunk)
            carried.append(state)
            _, states = _chunk_states(state, A, *(each[part] for each in first[:3]))
            output[part] = (states @ first[3][part][..., None])[..., 0]
            state = states[-1].clone()
        ctx.save_for_backward(A, torch.stack(carried), *first)
        ctx.chunk = chunk
        return output.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        A, carried, x, step, B, C = ctx.saved_tensors
        grad_output = grad_output.transpose(0, 1).contiguous()
        grads = [torch.empty_like(each) for each in (x, step, B, C)]
        grad_A, later = torch.zeros_like(A), torch.zeros_like(carried[0])
        for number, start in reversed(list(enumerate(range(0, x.shape[0], ctx.chunk)))):
            part = slice(start, start + ctx.chunk)
            inputs = [each[part] for each in (x, step, B)]
            decay, states = _chunk_states(carried[number], A, *inputs)
            grads[3][part] = (grad_output[part, :, None] @ states)[:, :, 0]
            adjoint = _chunk_adjoint(later, decay, grad_output[part], C[part])
            later = adjoint[0] * decay[0]  # what the state before this chunk receives
            grads[2][part] = ((inputs[0] * inputs[1])[:, :, None] @ adjoint)[:, :, 0]
            through_B = (adjoint @ inputs[2][..., None])[..., 0]
            grads[0][part] = through_B * inputs[1]
            # d exp(Δ A): the state before each token, its decay, and what arrives there.
            rate = decay.mul_(adjoint)
            rate[1:].mul_(states[:-1])
            rate[0].mul_(carried[number])
            grads[1][part] = (rate * A).sum(-1) + through_B * inputs[0]
            grad_A += (rate * inputs[1][..., None]).sum((0, 1))
        grad_x, grad_step, grad_B, grad_C = (each.transpose(0, 1) for each in grads)
        return grad_x, grad_step, grad_A, grad_B, grad_C, None


def _chunk_states(
    state: Tensor, A: Tensor, x: Float[Tensor, "T B I"], step: Float[Tensor, "T B I"], B: Float[Tensor, "T B N"]
) -> tuple[Float[Tensor, "T B I N"], Float[Tensor, "T B I N"]]:
    """Return the decays and the states of a chunk's tokens, given the state before it."""
    decay = (step[..., None] * A).exp_()
    states = (step * x)[..., None] * B[:, :, None]
    for token in range(len(states)):
        state = states[token].addcmul_(decay[token], state)
    return decay, states


def _chunk_adjoint(
    later: Tensor, decay: Float[Tensor, "T B I N"], grad_output: Float[Tensor, "T B I"], C: Float[Tensor, "T B N"]
) -> Float[Tensor, "T B I N"]:
    """Return the loss's derivative by every state of a chunk; ``later`` is what the next chunk sends to its last."""
    adjoint = grad_output[..., None] * C[:, :, None]
    adjoint[-1] += later
    for token in range(len(adjoint) - 2, -1, -1):
        adjoint[token].addcmul_(decay[token + 1], adjoint[token + 1])
    return adjoint


def head_scan(
    x: Float[Tensor, "B L H P"],
    step: Float[Tensor, "B L H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B L G N"],
    C: Float[Tensor, "B L G N"],
    chunk: int = HEAD_CHUNK,
) -> Float[Tensor, "B L H P"]:
    """Return y of h_t = exp(Δ_t A) h_{t−1} + Δ_t x_t B_tᵀ, y_t = h_t C_t, from a zero state (2405.21060, §6).

    Inside a chunk y = (C Bᵀ ∘ decay) x, a product with a lower-triangular matrix; between chunks the state is carried.
    """
    tokens, groups = x.shape[1], B.shape[2]
    chunk = math.ceil(tokens / math.ceil(tokens / chunk))  # no longer than it need be for as many chunks
    values = _chunks(x * step[..., None], chunk).unflatten(2, (groups, -1))  # (B, c, G, H/G, T, P)
    inward, outward = _chunks(B, chunk), _chunks(C, chunk)  # (B, c, G, T, N): of all heads of a group
    # Differences of running sums: in float64, for they cancel.
    elapsed = _chunks((step.double() * A.double())[..., None], chunk)[..., 0].cumsum(-1).unflatten(2, (groups, -1))
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    between = (elapsed[..., :, None] - elapsed[..., None, :]).to(x.dtype).masked_fill(future, -torch.inf)
    y = ((outward @ inward.mT)[:, :, :, None] * between.exp()) @ values
    if y.shape[1] > 1:
        until_end = (elapsed[..., -1:] - elapsed).to(x.dtype).exp()[..., None]
        whole = elapsed[..., -1].to(x.dtype).exp()[:, :, :, None, :, None]  # (B, c, G, 1, H/G, 1)
        states = _states(inward[:, :-1], (values * until_end)[:, :-1], whole[:, 1:])
        # The heads of a group side by side: one product (T, N) x (N, H/G P).
        carried = (outward[:, 1:] @ states.flatten(-2)).unflatten(-1, states.shape[-2:]).movedim(-3, -2)
        y = y + F.pad(carried, (0,) * 8 + (1, 0)) * elapsed.to(x.dtype).exp()[..., None]
    return y.flatten(2, 3).movedim(2, 3).flatten(1, 2)[:, :tokens]


def _states(
    inward: Float[Tensor, "B c G T N"], values: Float[Tensor, "B c G R T P"], whole: Float[Tensor, "B c G 1 R 1"]
) -> Float[Tensor, "B c G N R P"]:
    """Return the state at the end of each chunk, given what is left of its inputs and of the state it begins with."""
    side_by_side = values.movedim(-3, -2).flatten(-2)  # (B, c, G, T, R P)
    added = (inward.mT @ side_by_side).unflatten(-1, (values.shape[3], -1))
    states = [added[:, 0]]
    for left, new in zip(whole.unbind(1), added[:, 1:].unbind(1), strict=False):
        states.append(left * states[-1] + new)
    return torch.stack(states, dim=1)


def _chunks(tensor: Float[Tensor, "B L H K"], chunk: int) -> Float[Tensor, "B c H T K"]:
    """Fill up with zeros to whole chunks, and put the chunks' tokens behind the heads."""
    padding = -tensor.shape[1] % chunk
    return F.pad(tensor, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, chunk)).movedim(3, 2)
