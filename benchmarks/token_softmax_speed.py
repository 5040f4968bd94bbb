"""What the causal token-softmax costs, against a plain version and against attention without it: one thread, in turn.

python -m benchmarks.token_softmax_speed --output benchmarks/results
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import keep_memory
from benchmarks.timing import alternate, seconds, spread
from comparison.run.environment import environment
from structured_init.files import write_json, write_text
from structured_init.layers.token_softmax import token_softmax_attention

SHAPES = ((8, 4, 64, 32), (4, 4, 128, 32), (2, 4, 256, 32))  # batch, heads, tokens, head width
CALLS = 5  # in each time
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One fused attention over exponentials, divided by running sums."""
    return token_softmax_attention(query, key, value, 0.0, 1.0, is_causal=True)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A softmax over tokens for every query, written out: (…, N, M, d) numbers."""
    tokens = query.shape[-2]
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    logits = (query @ key.mT) * query.shape[-1] ** -0.5
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    values = value[..., None, :, :].expand(*value.shape[:-2], tokens, *value.shape[-2:])
    softmaxed = values.masked_fill(~visible[..., None], -torch.inf).softmax(-2)
    return torch.einsum("...ij,...ijd->...id", weights, softmaxed)


def without(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention to the values themselves."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


ARMS: dict[str, Attention] = {"ours": ours, "plain": plain, "without": without}


def measure(shape: tuple[int, int, int, int], rounds: int) -> dict[str, Any]:
    """Time a forward and backward pass of each arm; return seconds, and how far ours is from the plain version."""
    batch, heads, tokens, width = shape
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(batch, heads, tokens, width, generator=generator, requires_grad=True) for _ in range(3)]
    gradients = {name: torch.autograd.grad(arm(*inputs).square().sum(), inputs) for name, arm in ARMS.items()}
    apart = max(
        ((mine - theirs).abs().max() / theirs.abs().max()).item()
        for mine, theirs in zip(gradients["ours"], gradients["plain"], strict=True)
    )

    def work(arm: Attention) -> None:
        for _ in range(CALLS):
            arm(*inputs).sum().backward()

    times = alternate({name: partial(seconds, partial(work, arm)) for name, arm in ARMS.items()}, rounds)
    return {"shape": shape, "seconds": {name: [each / CALLS for each in values] for name, values in times.items()},
            "apart": apart}  # fmt: skip


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    lines = [
        "# What the causal token-softmax costs",
        "",
        "    python -m benchmarks.token_softmax_speed --output benchmarks/results",
        "",
        "Forward and backward in float32, processor seconds of one thread; all take turns,",
        f"{record['settings']['rounds']} rounds. Ratios: medians over rounds, quartiles in brackets. `plain` writes a",
        "softmax over tokens out for every query; `without` is fused attention to V itself. `apart`: the largest",
        "difference of a gradient from the plain version's, by its largest entry.",
        "",
        "| batch, heads, tokens, width | ours, ms | plain / ours | ours / without | apart |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        mine, slow, fast = (row["seconds"][name] for name in ("ours", "plain", "without"))
        saved = spread([b / a for a, b in zip(mine, slow, strict=True)], 1)
        cost = spread([a / b for a, b in zip(mine, fast, strict=True)], 1)
        sizes = ", ".join(str(each) for each in row["shape"])
        lines.append(f"| {sizes} | {1e3 * median(mine):.1f} | {saved} | {cost} | {row['apart']:.0e} |")
    lines += ["", ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()) + ", seed 0."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    rows = [measure(shape, arguments.rounds) for shape in SHAPES]
    record = {
        "settings": {"rounds": arguments.rounds, "seed": 0},
        "surroundings": environment(),
        "rows": rows,
    }
    write_json(arguments.output / "token_softmax_speed.json", record)
    write_text(arguments.output / "token_softmax_speed.md", table(record))
    print(table(record))


if __name__ == "__main__":
    main()
