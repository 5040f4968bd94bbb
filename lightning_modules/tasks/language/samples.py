"""Text from a causal model, drawn from a generator of its own, and tokens as text.

Letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from structured_init.util.errors import StructuredInitError


@torch.no_grad()
def generate(
    next_logits: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    tokens: int,
    *,
    block_size: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> list[int]:
    """Return a prompt and its continuation by a number of tokens; without a cache, so that any architecture can do it.

    Args:
        next_logits: (1, T) token numbers → (1, T, V) logits.
        prompt: token numbers, of which one at least is needed.
        tokens: how many to draw.
        block_size: how many of the latest tokens the model sees.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: draw among so many likeliest tokens; all where null.
        generator: on the CPU; no other random state is read or moved.
        device: of the model.
    """
    if not prompt:
        raise StructuredInitError("a prompt needs at least one token")
    text = list(prompt)
    for _ in range(tokens):
        seen = torch.tensor([text[-block_size:]], device=device)
        text.append(draw(next_logits(seen)[0, -1], temperature=temperature, top_k=top_k, generator=generator))
    return text


def draw(logits: Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Draw one token number from logits (V,)."""
    if temperature == 0:
        return int(logits.argmax())
    logits = logits.float().cpu() / temperature
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return one string per token number: what stands on the axes of an attention map.

    A tokenizer has ``decode``; ``None`` gives the numbers themselves.
    """
    return [str(token) if tokenizer is None else str(tokenizer.decode([token])) for token in ids]
