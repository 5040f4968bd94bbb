"""The selective scan of Mamba on a CPU, chunk by chunk, with its gradient written out.

Letters: B batch, L tokens, I channels, N states. h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t, y_t = C_t h_t, per channel.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

CHUNK = 8  # tokens whose states fit a processor's cache; measured in benchmarks/results/scan_speed.md


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

    Args:
        x: inputs.
        step: Δ, behind its softplus.
        A: negative decay rates.
        B: input projections.
        C: output projections.
        chunk: tokens per chunk.
    """
    return _SelectiveScan.apply(x, step, A, B, C, chunk)


def sequential_scan(x: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The same by its definition, one token after another: what the others are checked against."""
    state, outputs = x.new_zeros(x.shape[0], x.shape[2], A.shape[1]), []
    for token in range(x.shape[1]):
        decay = (step[:, token, :, None] * A).exp()
        state = decay * state + (step * x)[:, token, :, None] * B[:, token, None]
        outputs.append((state * C[:, token, None]).sum(-1))
    return torch.stack(outputs, dim=1)


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
