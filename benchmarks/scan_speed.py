"""What a training step of Mamba and Mamba-2 costs on a CPU: transformers' own scans, mambapy's, and this project's.

All take turns in every round, so that what else the machine does meets them alike. Seconds are those of the processor,
all threads together.

- ``scan``: the scan alone, forward and backward, at each length and state size.
- ``model``: a whole step (forward, loss, backward) of a language model of two layers.
- ``transformers``: its loop over tokens (Mamba), its chunks of 256 tokens (Mamba-2, the default of its config);
  ``chunk 32``: the same with chunks of 32. ``mambapy``: its parallel scan, as transformers calls it.
- ``ours``: ``selective_scan`` and ``head_scan``.

Before anything is timed, values and gradients are compared with the recurrence, token by token.

python -m benchmarks.scan_speed --output runs/scan_speed
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Mamba2Config, MambaConfig
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

from benchmarks.memory import keep_memory
from comparison.run.environment import environment
from lightning_modules.networks.state_space import use_chunked_scan
from structured_init.files import write_json, write_text
from structured_init.ssm.head_scan import head_scan
from structured_init.ssm.scan import selective_scan, sequential_scan

#         tokens states
SHAPES = ((64, 16), (128, 16), (256, 16), (128, 64))
CHANNELS, HEADS = 128, 4
ARMS = {
    "mamba": ("transformers", "mambapy", "ours"),
    "mamba2": ("transformers", "chunk 32", "ours"),
}
TOLERANCE = 1e-5

Scan = Callable[..., Tensor]


def main() -> None:
    """Check, measure shape by shape, and write JSON and Markdown."""
    arguments = parse()
    keep_memory()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for what in ("scan", "model"):
        for kind, arms in ARMS.items():
            for tokens, states in SHAPES:
                steps = {arm: STEPS[what](kind, arm, tokens, states, arguments.batch) for arm in arms}
                worst = difference(kind, tokens, states) if what == "scan" else None
                seconds = measure(steps, arguments.rounds)
                rows.append(
                    {"what": what, "kind": kind, "tokens": tokens, "states": states, "worst": worst, "seconds": seconds}
                )
                print(row(rows[-1]), flush=True)
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    record = {"settings": settings, "surroundings": environment(), "rows": rows}
    write_json(arguments.output / "scan_speed.json", record)
    write_text(arguments.output / "scan_speed.md", table(rows) + "\n")


def inputs(kind: str, tokens: int, states: int, batch: int) -> list[Tensor]:
    """Return x, Δ, A, B and C with gradients; decays from next to nothing to fast."""
    torch.manual_seed(0)
    width = CHANNELS // HEADS
    if kind == "mamba":
        x, step = torch.randn(batch, tokens, CHANNELS), torch.rand(batch, tokens, CHANNELS)
        A, mixed = -torch.logspace(-3, 0.5, CHANNELS * states).view(CHANNELS, states), (batch, tokens, states)
    else:
        x, step = torch.randn(batch, tokens, HEADS, width), torch.rand(batch, tokens, HEADS)
        A, mixed = -torch.logspace(-3, 0.5, HEADS), (batch, tokens, 1, states)
    return [each.requires_grad_() for each in (x, step, A, torch.randn(mixed), torch.randn(mixed))]


def scans(kind: str) -> dict[str, Scan]:
    """Return every arm's scan as a function of the same inputs."""
    if kind == "mamba2":
        return {
            "transformers": lambda *args: mamba2_chunk_scan(*args, chunk_size=256),
            "chunk 32": lambda *args: mamba2_chunk_scan(*args, chunk_size=32),
            "ours": head_scan,
        }

    def host(x: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor, *, use_mambapy: bool) -> Tensor:
        return mamba_selective_scan(x.mT, step.mT, A, B.mT, C.mT, use_mambapy=use_mambapy).mT

    return {
        "transformers": lambda *args: host(*args, use_mambapy=False),
        "mambapy": lambda *args: host(*args, use_mambapy=True),
        "ours": selective_scan,
    }


def recurrence(kind: str) -> Scan:
    """Return the scan by its definition."""
    if kind == "mamba":
        return sequential_scan

    def per_head(x: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        width, states = x.shape[3], B.shape[3]
        heads = (
            sequential_scan(
                x[:, :, h],
                step[:, :, h, None].expand(-1, -1, width),
                A[h].expand(width, states),
                B[:, :, 0],
                C[:, :, 0],
            )
            for h in range(x.shape[2])
        )
        return torch.stack(list(heads), dim=2)

    return per_head


def difference(kind: str, tokens: int, states: int) -> float:
    """Return the largest difference of value or gradient from the recurrence in float64, by the largest entry."""
    arguments = inputs(kind, tokens, states, batch=1)
    exact = [each.detach().double().requires_grad_() for each in arguments]
    wanted, got = results(recurrence(kind), exact), results(scans(kind)["ours"], arguments)
    worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, wanted, strict=True))
    if worst > TOLERANCE:
        raise SystemExit(f"{kind} at {tokens} tokens: ours differs from the recurrence by {worst:.1e}")
    return worst


def results(scan: Scan, arguments: list[Tensor]) -> list[Tensor]:
    """Return the value, and the gradient of a fixed weighted sum by every input."""
    y = scan(*arguments)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return [y, *torch.autograd.grad((y * weight).sum(), arguments)]


def scan_step(kind: str, arm: str, tokens: int, states: int, batch: int) -> Callable[[], object]:
    """Return the scan alone, with the gradients of all inputs."""
    scan, arguments = scans(kind)[arm], inputs(kind, tokens, states, batch)
    return lambda: torch.autograd.grad(scan(*arguments).square().sum(), arguments)


def model_step(kind: str, arm: str, tokens: int, states: int, batch: int) -> Callable[[], object]:
    """Return a training step of two layers, CHANNELS / 2 wide, without the optimizer."""
    common = {"vocab_size": 32, "hidden_size": CHANNELS // 2, "num_hidden_layers": 2, "state_size": states}
    torch.manual_seed(0)
    if kind == "mamba":
        config = MambaConfig(**common, use_mambapy=arm == "mambapy")
    else:
        sizes = {"num_heads": HEADS, "head_dim": CHANNELS // HEADS, "n_groups": 1}
        config = Mamba2Config(**common, **sizes, chunk_size=32 if arm == "chunk 32" else 256)
    model = AutoModelForCausalLM.from_config(config).train()
    if arm == "ours":
        use_chunked_scan(model)
    ids = torch.randint(32, (batch, tokens))

    def step() -> None:
        model.zero_grad()
        model(ids, labels=ids).loss.backward()

    return step


STEPS = {"scan": scan_step, "model": model_step}


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every round by arm; the first round, which warms up, is left out."""
    seconds: dict[str, list[float]] = {arm: [] for arm in steps}
    for turn in range(rounds + 1):
        for arm, step in steps.items():
            begin = time.process_time()
            step()
            if turn:
                seconds[arm].append(time.process_time() - begin)
    return seconds


def table(rows: list[dict]) -> str:
    """Return a Markdown table: median milliseconds, and how many times ours is faster than each other."""
    head = "| what | model | tokens | states | ours, ms | transformers / ours | mambapy or chunk 32 / ours | error |"
    return "\n".join([head, "|---" * 8 + "|", *map(row, rows)])


def row(cell: dict) -> str:
    """Return one line of the table."""
    seconds = cell["seconds"]
    ratios = []
    for arm in ARMS[cell["kind"]][:-1]:
        values = sorted(a / b for a, b in zip(seconds[arm], seconds["ours"], strict=True))
        low, high = values[len(values) // 4], values[(3 * len(values)) // 4]
        ratios.append(f"{statistics.median(values):.1f} ({low:.1f}–{high:.1f})")
    error = "" if cell["worst"] is None else f"{cell['worst']:.0e}"
    milliseconds = 1e3 * statistics.median(seconds["ours"])
    return (
        f"| {cell['what']} | {cell['kind']} | {cell['tokens']} | {cell['states']} | {milliseconds:.0f} | "
        f"{' | '.join(ratios)} | {error} |"
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
