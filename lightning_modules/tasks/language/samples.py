"""Text from a causal model, drawn from a generator of its own, and where a run writes and shows it.

Letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from structured_init.util.errors import StructuredInitError
from structured_init.util.files import replacing


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


def log_samples(trainer: Trainer, folder: Path, texts: Sequence[str]) -> None:
    """Write texts to ``samples/step_00001000.txt`` and show them to TensorBoard and W&B, on rank zero alone."""
    step = trainer.global_step
    with replacing(folder / "samples" / f"step_{step:08d}.txt") as temporary:
        temporary.write_text("\n\n--------\n\n".join(texts) + "\n", encoding="utf-8")
    for logger in trainer.loggers:
        writer = getattr(logger, "experiment", None)
        if hasattr(logger, "log_text"):
            logger.log_text(key="samples", columns=["step", "text"], data=[[step, text] for text in texts])
        elif hasattr(writer, "add_text"):
            for number, text in enumerate(texts):
                writer.add_text(f"samples/{number}", text, global_step=step)


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return one string per token number: what stands on the axes of an attention map.

    A tokenizer has ``decode``; ``None`` gives the numbers themselves.
    """
    return [decode(tokenizer, [int(token)]) for token in ids]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token numbers of a text, without special tokens."""
    try:
        encoded = tokenizer.encode(text, add_special_tokens=False)
    except TypeError:  # a tokenizer without special tokens
        encoded = tokenizer.encode(text)
    return list(getattr(encoded, "ids", encoded))


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of token numbers; the numbers themselves without a tokenizer."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    return str(tokenizer.decode(list(ids)))
