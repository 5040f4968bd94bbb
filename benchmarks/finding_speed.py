"""What finding attention by watching costs, in forward passes of the same model on the same batch.

python -m benchmarks.finding_speed --output benchmarks/results
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn

from benchmarks.timing import SEED, alternate, measure_parts, parser, seconds
from structured_init import discover_attention

SAMPLES, TOKENS, WISHED = 2, 256, 3


def main() -> None:
    """Measure what was asked for."""
    measures = {name: partial(beside, build) for name, build in MODELS.items()}
    measure_parts("finding_speed", measures, table, parser(__doc__, MODELS, repeats=7).parse_args())


def vision(name: str) -> tuple[nn.Module, Tensor]:
    """Return a model of timm and images as large as it takes."""
    model = timm.create_model(name).eval()
    return model, torch.randn(SAMPLES, *model.pretrained_cfg["input_size"])


def language(name: str, **settings: int) -> tuple[nn.Module, Tensor]:
    """Return a model of transformers, in its usual size unless settings say another, and random tokens."""
    config = transformers.AutoConfig.for_model(name, **settings)
    model = transformers.AutoModel.from_config(config).eval()
    return model, torch.randint(config.vocab_size, (SAMPLES, TOKENS))


MIDDLE = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "vocab_size": 32000}
LLAMA = MIDDLE | {"num_hidden_layers": 12, "num_key_value_heads": 4}
JAMBA = MIDDLE | {"num_hidden_layers": 8, "num_key_value_heads": 4, "num_experts": 4}

MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "ViT-B": partial(vision, "vit_base_patch16_224"),
    "ViT-S": partial(vision, "vit_small_patch16_224"),
    "Swin-T": partial(vision, "swin_tiny_patch4_window7_224"),
    "MobileViT-S": partial(vision, "mobilevit_s"),
    "PVT v2 B1": partial(vision, "pvt_v2_b1"),
    "MaxViT-T": partial(vision, "maxvit_tiny_tf_224"),
    "GPT-2": partial(language, "gpt2"),
    "BERT-B": partial(language, "bert"),
    "Llama": partial(language, "llama", **LLAMA),
    "Jamba": partial(language, "jamba", **JAMBA),
}


def beside(build: Callable[[], tuple[nn.Module, Tensor]], arguments: Namespace) -> dict[str, Any]:
    """Time a forward pass and finding on one batch, in turns, in seconds of the processor."""
    torch.manual_seed(SEED)
    model, batch = build()
    found = [layer for layer in discover_attention(model, batch) if layer.layout is not None]
    with torch.no_grad():
        model(batch)
        sides = {"forward": partial(model, batch), "finding": partial(discover_attention, model, batch)}
        times = alternate({name: partial(seconds, work) for name, work in sides.items()}, arguments.repeats)
    return {"layers": len(found), **times}


def table(record: dict[str, Any]) -> str:
    """Return one row for each model."""
    lines = [
        "# Finding attention, in forward passes",
        "",
        "    python -m benchmarks.finding_speed --output benchmarks/results",
        "",
        f"`discover_attention` beside a forward pass without gradients, {SAMPLES} images or {SAMPLES} texts of {TOKENS}"
        f" tokens: seconds of the processor, medians. At most {WISHED} passes are wished for.",
        "",
        ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()),
        "",
        "| model | layers found | forward, s | finding, s | n | passes | least – most |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [row(name, record[name]) for name in MODELS if name in record]
    return "\n".join(lines)


def row(name: str, found: dict[str, Any]) -> str:
    """Return the row of one model; passes are ratios of neighbouring measurements."""
    forward, finding = found["forward"], found["finding"]
    passes = [a / b for a, b in zip(finding, forward, strict=True)]
    spread = f"{min(passes):.2f} – {max(passes):.2f}"
    return (
        f"| {name} | {found['layers']} | {median(forward):.3g} | {median(finding):.3g} | {len(passes)} | "
        f"{median(passes):.2f} | {spread} |"
    )


if __name__ == "__main__":
    main()
