"""Generated text, where a run writes it and who else is shown it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from structured_init.files import replacing


def log_samples(trainer: Trainer, folder: Path, texts: Sequence[str]) -> None:
    """Write texts to ``samples/step_00001000.txt`` and show them to TensorBoard and W&B.

    Args:
        trainer: whose step and loggers count; on rank zero.
        folder: of the run.
        texts: prompt and continuation each.
    """
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

    Args:
        tokenizer: of the data, or of ``tokenizers`` or transformers; ``None`` gives the numbers themselves.
        ids: token numbers.
    """
    for name in ("token", "id_to_token", "convert_ids_to_tokens"):
        convert = getattr(tokenizer, name, None)
        if callable(convert):
            return [str(convert(int(token))) for token in ids]
    return [str(int(token)) for token in ids]


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
