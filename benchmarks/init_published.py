"""Published initializations, transcribed step by step from ``docs``: what ours are timed against.

Nothing here is the library's. A transcription writes into a network of timm, as the published code does.

Letters: H heads, N tokens, D embed_dim, k head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

FIXED_ORDER = (4, 1, 5, 3, 7, 0, 2, 6, 8)  # of 2505.19985: centre, up, right, left, down, corners
POSITION_STD = 18 * 0.02


def impulse_target(place: int, grid: tuple[int, int], kernel_size: int = 3) -> np.ndarray:
    """Return the matrix of a convolution with one impulse, at entry ``place`` of its kernel; rows outside are empty."""
    rows, columns = grid
    down, right = place // kernel_size - kernel_size // 2, place % kernel_size - kernel_size // 2
    target = np.zeros((rows * columns, rows * columns))
    for y in range(max(0, -down), min(rows, rows - down)):
        for x in range(max(0, -right), min(columns, columns - right)):
            target[y * columns + x, (y + down) * columns + x + right] = 1
    return target


def layer_norm(tokens: np.ndarray) -> np.ndarray:
    """Layer normalization without parameters."""
    centred = tokens - tokens.mean(axis=1, keepdims=True)
    return centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5)


def svd_layer(
    tokens: np.ndarray, heads: int, head_dim: int, grid: tuple[int, int], generator: torch.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """2505.19985, steps 2 to 6: W_q and W_k (D, k) of each head of one layer, by D × D decompositions."""
    left, singular, right = np.linalg.svd(tokens.T @ tokens)
    inverse = np.zeros_like(singular)
    inverse[:head_dim] = 1 / singular[:head_dim]
    pseudo_inverse = right.T @ np.diag(inverse) @ left.T @ tokens.T
    factors = []
    for head in range(heads):
        impulses = impulse_target(FIXED_ORDER[head % 9], grid)
        noise = torch.empty(impulses.shape, dtype=torch.float64)
        torch.nn.init.trunc_normal_(noise, std=0.6, a=-2.0, b=2.0, generator=generator)
        target = 1000 * impulses + 3 * noise.numpy() * (impulses == 0)
        u, s, v = np.linalg.svd(pseudo_inverse @ target @ pseudo_inverse.T)
        query, key = u[:, :head_dim] * np.sqrt(s[:head_dim]), v[:head_dim].T * np.sqrt(s[:head_dim])
        factors.append((7 * query / np.linalg.norm(query), 7 * key / np.linalg.norm(key)))
    return factors


def svd_published(model: VisionTransformer, generator: torch.Generator, solve: Callable[..., Any] = svd_layer) -> None:
    """2505.19985: Gaussian positions of gain 18, then queries and keys layer by layer. Values are left alone."""
    grid, width = model.patch_embed.grid_size, model.embed_dim
    positions = POSITION_STD * torch.randn(grid[0] * grid[1], width, generator=generator)
    model.pos_embed.data[0, -len(positions) :] = positions
    tokens = layer_norm(positions.double().numpy())
    for block in model.blocks:
        heads, head_dim = block.attn.num_heads, block.attn.head_dim
        write_heads(block.attn.qkv.weight.data, solve(tokens, heads, head_dim, grid, generator))


def adam_solution(
    tokens: Tensor, targets: Tensor, head_dim: int, *, iterations: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """2404.01139: W_q (H, D, k), W_k (H, k, D) and the last loss, by Adam on the attention maps, in float32."""
    heads, width = len(targets), tokens.shape[1]
    bound = math.sqrt(1 / (head_dim * heads))
    query = bound * (2 * torch.rand(heads, width, head_dim, generator=generator) - 1)
    key = bound * (2 * torch.rand(heads, head_dim, width, generator=generator) - 1)
    norm = query.norm(dim=1).mean()
    query.requires_grad_()
    key.requires_grad_()
    optimizer = torch.optim.Adam([query, key], lr=1e-4)
    for iteration in range(iterations):
        if iteration % 100 == 0:
            with torch.no_grad():
                query.mul_(norm / query.norm(dim=1, keepdim=True))
                key.mul_(norm / key.norm(dim=1, keepdim=True))
        attention = (head_dim**-0.5 * tokens @ query @ key @ tokens.T).softmax(dim=-1)
        loss = torch.nn.functional.mse_loss(attention, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return query.detach(), key.detach(), loss.item()


def adam_published(model: VisionTransformer, iterations: int, generator: torch.Generator) -> None:
    """2404.01139, 3 × 3: sincos positions, one solution at random offsets, copied into every layer."""
    (rows, columns), width = model.patch_embed.grid_size, model.embed_dim
    bands = 10_000.0 ** -(torch.arange(width // 4) / (width // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    y, x = y.reshape(-1, 1) * bands, x.reshape(-1, 1) * bands
    positions = torch.cat([y.sin(), x.sin(), y.cos(), x.cos()], dim=1)
    model.pos_embed.data[0, -len(positions) :] = positions
    tokens = torch.nn.functional.layer_norm(positions, [width])
    heads, head_dim = model.blocks[0].attn.num_heads, model.blocks[0].attn.head_dim
    places = torch.randint(0, 9, (heads,), generator=generator).tolist()
    targets = torch.tensor(np.stack([impulse_target(place, (rows, columns)) for place in places])).float()
    query, key, _ = adam_solution(tokens, targets, head_dim, iterations=iterations, generator=generator)
    for block in model.blocks:
        write_heads(block.attn.qkv.weight.data, list(zip(query.numpy(), key.mT.numpy(), strict=True)))


def mimetic_published(model: VisionTransformer, noise: Callable[[int, str, int], np.ndarray]) -> None:
    """2305.09828: per head a full SVD of 0.7 Z + 0.7 I, cut to k; per layer one of 0.4 Z − 0.4 I, all in float64.

    Args:
        model: written to.
        noise: gives Z (D, D) with variance 1/D for a layer's number, a part's name and D; asked in order.
    """
    for number, block in enumerate(model.blocks):
        width, head_dim = model.embed_dim, block.attn.head_dim
        factors = []
        for _ in range(block.attn.num_heads):
            u, s, v = np.linalg.svd(0.7 * noise(number, "query_key", width) + 0.7 * np.eye(width))
            root = np.sqrt(s[:head_dim])
            factors.append((u[:, :head_dim] * root, v[:head_dim].T * root))
        u, s, v = np.linalg.svd(0.4 * noise(number, "value_output", width) - 0.4 * np.eye(width))
        write_heads(block.attn.qkv.weight.data, factors)
        block.attn.qkv.weight.data[2 * width :] = torch.from_numpy((u * np.sqrt(s)).T)
        block.attn.proj.weight.data.copy_(torch.from_numpy((np.sqrt(s)[:, None] * v).T))


def write_heads(qkv: Tensor, factors: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Store W_q and W_k (D, k) of every head in timm's fused weight, (3·D, D)."""
    width = qkv.shape[1]
    for head, (query, key) in enumerate(factors):
        head_dim = query.shape[1]
        rows = slice(head * head_dim, (head + 1) * head_dim)
        qkv[:width][rows] = torch.from_numpy(query.T)
        qkv[width : 2 * width][rows] = torch.from_numpy(key.T)
