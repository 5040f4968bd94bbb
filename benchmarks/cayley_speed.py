"""What an orthogonal convolution costs: training and evaluation beside a plain convolution and the published formula.

All take turns in every round, so that what else the machine does meets them alike. On the CPU, seconds are those of the
processor in the calling thread, so that other processes do not count, and what other threads take over saves some; what
it waits for does not count if threads sleep meanwhile (OMP_WAIT_POLICY=passive). On a GPU they are those of the clock.

- ``plain``: ``nn.Conv2d`` with zero padding, the usual one; ``circular``: the same with circular padding.
- ``Cayley``: this project's layer. ``published``: the same function as the paper writes it, without what makes ours
  cheaper: an inverse by LAPACK, Q formed, nothing kept for evaluation.
- ``transforms``: the layer's Fourier transforms there and back, alone; ``inverses``: its inverses alone. Below them no
  rearrangement of the rest can bring it.

python -m benchmarks.cayley_speed --output runs/cayley_speed
OMP_WAIT_POLICY=passive python -m benchmarks.cayley_speed --threads 2 --output runs/cayley_speed_two_threads
python -m benchmarks.cayley_speed --device cuda --output runs/cayley_speed_gpu
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from comparison.run.environment import environment
from structured_init.files import write_json, write_text
from structured_init.layers import CayleyConv2d
from structured_init.layers.cayley_transform import inverse
from structured_init.layers.half_spectrum import from_spectrum, in_parts, to_spectrum

#         channels size
SHAPES = ((32, 32), (64, 32), (128, 16), (256, 8))
LAYERS = ("plain", "circular", "Cayley", "published")
PADDING = {"plain": "zeros", "circular": "circular"}
PIECES = {"training": ("transforms", "inverses"), "evaluation": ("transforms",)}


class Published(nn.Module):
    """Q = (I + A)⁻¹ (I − A) with A = K − Kᴴ at each frequency of half the spectrum, multiplied out (2104.07167)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolution = nn.Conv2d(channels, channels, 3)
        self.weight, self.bias = convolution.weight, convolution.bias
        self.alpha = nn.Parameter(self.weight.detach().norm())

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-1]
        turns = torch.fft.fftfreq(n, device=x.device)[:, None] + torch.fft.rfftfreq(n, device=x.device)
        centre = torch.polar(torch.ones_like(turns), -2 * math.pi * turns)
        response = torch.fft.rfft2(self.weight, s=(n, n)).conj() * centre
        response = (response * (self.alpha / response.norm())).permute(2, 3, 0, 1)
        skew, identity = response - response.mH, torch.eye(len(self.bias), device=x.device)
        matrices = torch.linalg.inv(identity + skew) @ (identity - skew)
        spectrum = matrices @ torch.fft.rfft2(x).permute(2, 3, 1, 0)
        return torch.fft.irfft2(spectrum.permute(3, 2, 0, 1), s=(n, n)) + self.bias[:, None, None]


def build(kind: str, channels: int) -> nn.Module:
    """Return one of the layers, with as many channels out as in and kernel 3."""
    if kind in PADDING:
        return nn.Conv2d(channels, channels, 3, padding=1, padding_mode=PADDING[kind])
    return CayleyConv2d(channels, channels, 3) if kind == "Cayley" else Published(channels)


def main() -> None:
    """Measure shape by shape and write JSON and Markdown."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    rows = []
    for channels, size in SHAPES if arguments.shapes is None else arguments.shapes:
        for mode in ("training", "evaluation"):
            seconds = measure(mode, channels, size, arguments)
            rows.append({"channels": channels, "size": size, "mode": mode, "seconds": seconds})
            print(row(rows[-1]), flush=True)
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    record = {"settings": settings, "surroundings": environment(), "rows": rows}
    write_json(arguments.output / "cayley_speed.json", record)
    write_text(arguments.output / "cayley_speed.md", table(rows) + "\n")


def measure(mode: str, channels: int, size: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of every round by layer; the first round, which warms up, is left out."""
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    x = torch.randn(arguments.batch, channels, size, size, device=device)
    upstream = torch.randn_like(x)
    steps = {kind: step(build(kind, channels).to(device), mode, x, upstream) for kind in LAYERS}
    steps |= {kind: piece(kind, mode, channels, x) for kind in PIECES[mode]}
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for turn in range(arguments.rounds + 1):
        for kind in steps:
            taken = timed(steps[kind], device)
            if turn:
                seconds[kind].append(taken)
    return seconds


def step(layer: nn.Module, mode: str, x: Tensor, upstream: Tensor) -> Callable[[], object]:
    """Return one forward with gradients of the input and all parameters, or one forward in evaluation mode."""
    if mode == "training":
        inputs = [x.clone().requires_grad_(), *layer.parameters()]
        return lambda: torch.autograd.grad(layer(inputs[0]), inputs, upstream)
    layer.eval()
    return torch.no_grad()(lambda: layer(x))


def piece(kind: str, mode: str, channels: int, x: Tensor) -> Callable[[], object]:
    """Return a part of the layer's work: the inverses of a step, or all transforms of a forward or of a step."""
    size = x.shape[-1]
    if kind == "inverses":
        response = CayleyConv2d(channels, channels, 3).to(x.device).response(size, size, x.dtype).detach()
        system = response - response.mH + torch.eye(channels, device=x.device)
        return lambda: inverse(system)
    parts = 2 * [x] if mode == "training" else in_parts(x)
    return torch.no_grad()(lambda: [from_spectrum(to_spectrum(part), size, size) for part in parts])


def timed(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a call takes."""
    if device.type != "cuda":
        begin = time.thread_time()
        function()
        return time.thread_time() - begin
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    function()
    torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def table(rows: list[dict]) -> str:
    """Return a Markdown table: median milliseconds, and the medians of the ratios to plain with their quartiles."""
    others = (*LAYERS[1:], *PIECES["training"])
    lines = [f"| channels@size | mode | plain, ms | {' | '.join(others)} |", "|---" * (3 + len(others)) + "|"]
    return "\n".join([*lines, *map(row, rows)])


def row(cell: dict) -> str:
    """Return one line of the table."""
    plain = cell["seconds"]["plain"]
    ratios = []
    for kind in (*LAYERS[1:], *PIECES["training"]):
        values = sorted(a / b for a, b in zip(cell["seconds"].get(kind, []), plain, strict=False))
        if values:
            low, high = values[len(values) // 4], values[(3 * len(values)) // 4]
            ratios.append(f"{statistics.median(values):.2f} ({low:.2f}–{high:.2f})")
        else:
            ratios.append("")
    milliseconds = 1e3 * statistics.median(plain)
    return f"| {cell['channels']}@{cell['size']}² | {cell['mode']} | {milliseconds:.1f} | {' | '.join(ratios)} |"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=lambda text: [int(n) for n in text.split("@")], help="e.g. 32@32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
