"""What the page of a large comparison costs: 40 initializations, 10 seeds, made up by numbers as runs write them.

    python -m benchmarks.report_scale --output benchmarks/results

Every run has 100 evaluations of four metrics, attention of 6 layers of 4 heads over 64 tokens, weight products and
representations. Written is measured in processor seconds and in seconds; opened is the load event of headless Chromium.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from comparison.report import write_report
from comparison.run.environment import environment
from structured_init.analysis import gram_matrix, summarize
from structured_init.files import write_json, write_text

ARMS, SEEDS, EPOCHS, LAYERS, HEADS, GRID, WIDTH, SAMPLES = 40, 10, 100, 6, 4, (8, 8), 64, 4
LIMITS = {"seconds": 60.0, "opened": 3.0, "megabytes": 10.0}
MOMENTS = ("before", "after")
PROCESSOR = "made up"


def make_comparison(folder: Path, arms: int = ARMS, seeds: int = SEEDS, epochs: int = EPOCHS) -> Path:
    """Write a folder as ``compare`` leaves it.

    Tensors are drawn once for each arm, and the files of its seeds are links to them: the report reads them all.

    Args:
        folder: where to.
        arms: initializations, the first the baseline.
        seeds: of each.
        epochs: evaluations of each run.
    """
    names = ["default", *(f"variant_{number:02d}" for number in range(1, arms))]
    manifest = {
        **{"version": 1, "experiment": ["vit_made_up"], "command": "structured-init compare", "arguments": []},
        **{"threads": 1, "metric": "test/accuracy", "mode": "max", "baseline": "default", "controls": {}},
        **{"arms": {name: {"init": name, "overrides": {}} for name in names}, "seeds": list(range(seeds))},
        **{"grid": {}, "learning_rates": [], "identity": "made up"},
    }
    write_json(folder / "comparison.json", manifest)
    for number, name in enumerate(names):
        rng = np.random.default_rng(number)
        first = None
        for seed in range(seeds):
            run = folder / "runs" / name / f"seed_{seed}"
            _write_run(run, name, seed, 0.8 + 0.002 * number + 0.01 * rng.standard_normal(), epochs)
            if first is None:
                first = run
                _write_tensors(run, torch.Generator().manual_seed(number))
            else:
                _link(first, run)
    return folder


def _write_run(run: Path, arm: str, seed: int, final: float, epochs: int) -> None:
    run.mkdir(parents=True)
    known = {"arm": arm, "seed": seed, "point": {}, "learning_rate": None}
    write_json(run.with_name(f"seed_{seed}.settings.json"), {**known, "threads": 1, "arguments": []})
    write_text(run / "experiment.yaml", "data: {init_args: {batch_size: 64}}\ntrainer: {devices: 1}\n")
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "seconds", "step", "train/accuracy", "train/loss", "val/accuracy", "val/loss"])
        for epoch in range(epochs):
            value = final * (1 - np.exp(-5 * (epoch + 1) / epochs))
            writer.writerow([epoch, 0.5 * (epoch + 1), 10 * epoch + 9, value, 1 - value, 0.99 * value, 1.1 - value])
    entries = [
        {"names": [f"network.blocks.{i}.{part}.weight"], "shape": [WIDTH, WIDTH], "set_by": ["Made: up"] if i else []}
        | {"before": {"mean": 0.0, "std": 0.02, "rms": 0.02}, "trainable": True}
        | {"after": {"mean": 0.0, "std": 0.02 + 0.001 * seed, "rms": 0.02} if i else None}
        for i in range(LAYERS)
        for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    ]
    report = {"initializer": f"{arm}()", "seed": seed, "entries": entries, "skipped": {}, "notes": {}, "warnings": []}
    write_json(run / "init_report.json", report)
    metrics = {"val/accuracy": final, "val/loss": 1.1 - final, "test/accuracy": final, "test/loss": 1.2 - final}
    result = {"metrics": metrics, "epochs": epochs, "steps": 10 * epochs, "seconds": 60.0}
    write_json(run / "result.json", {**known, **result, "environment": {"processor": PROCESSOR, "threads": 1}})


def _write_tensors(run: Path, generator: torch.Generator) -> None:
    layers = [f"network.blocks.{number}" for number in range(LAYERS)]
    tokens = GRID[0] * GRID[1]
    captures, statistics, summary = {}, {}, {}
    for moment in MOMENTS:
        shape = (SAMPLES, HEADS, tokens, tokens)
        maps = {f"{layer}.attn": torch.randn(shape, generator=generator).mul(2).softmax(-1) for layer in layers}
        grams = {layer: gram_matrix(torch.randn(64, 32, generator=generator))[None].float() for layer in layers}
        products = {}
        for layer in layers:
            products[f"{layer}.attn:query_key"] = torch.randn(HEADS, WIDTH, WIDTH, generator=generator)
            products[f"{layer}.attn:value_output"] = torch.randn(WIDTH, WIDTH, generator=generator)
        for part, tensors in (("attention", maps), ("representations", grams), ("weight_products", products)):
            (run / part).mkdir(exist_ok=True)
            save_file(tensors, run / part / f"{moment}.safetensors")
        captures[moment] = {"layers": {name: {"grid": list(GRID), "prefix_tokens": 0} for name in maps}}
        statistics[moment] = {name: summarize(each, GRID) for name, each in maps.items()}
        draw = torch.randn(LAYERS, 4, generator=generator).tolist()
        names = ("diagonal", "off_diagonal_std")
        keys = [f"{product}_{name}" for product in ("query_key", "value_output") for name in names]
        summary[moment] = {name: dict(zip(keys, row, strict=True)) for name, row in zip(maps, draw, strict=True)}
    write_json(run / "attention" / "meta.json", {"captures": captures})
    write_json(run / "attention" / "statistics.json", statistics)
    write_json(run / "weight_products" / "summary.json", summary)


def _link(first: Path, run: Path) -> None:
    for part in ("attention", "representations", "weight_products"):
        (run / part).mkdir()
        for file in (first / part).iterdir():
            os.link(file, run / part / file.name)


def seconds_to_open(page: Path) -> float | None:
    """Return the seconds until headless Chromium has loaded a page; None where it, or its driver, is not there."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.get("about:blank")
        browser.get(page.resolve().as_uri())
        timing = "const [t] = performance.getEntriesByType('navigation'); return t.loadEventEnd"
        return browser.execute_script(timing) / 1000
    finally:
        browser.quit()


def measure(place: Path) -> dict[str, Any]:
    """Make the comparison, write its report and open the page."""
    folder = make_comparison(place / "comparison")
    began, processor = time.perf_counter(), time.process_time()
    page, *others = write_report(folder)
    return {
        "processor_seconds": time.process_time() - processor,
        "seconds": time.perf_counter() - began,
        "opened": seconds_to_open(page),
        "megabytes": page.stat().st_size / 1e6,
        "files": len(others) + 1,
    }


def markdown(found: dict[str, Any], hardware: dict[str, Any]) -> str:
    """Return the table."""
    words = {
        "processor_seconds": ("written, seconds of one processor", f"under {LIMITS['seconds']:g}"),
        "seconds": ("written, seconds, beside other work of the machine", ""),
        "opened": ("opened in headless Chromium, seconds", f"under {LIMITS['opened']:g}"),
        "megabytes": ("the page, MB", f"under {LIMITS['megabytes']:g}"),
        "files": ("files written, figures among them", ""),
    }
    rows = [
        f"| {what} | {'not measured' if found[key] is None else f'{found[key]:.3g}'} | {limit} |"
        for key, (what, limit) in words.items()
    ]
    where = f"{hardware['processor']}, {hardware['threads']} threads, PyTorch {hardware['torch']}."
    parts = ["# The page of 40 initializations with 10 seeds", "    python -m benchmarks.report_scale --output DIR"]
    parts += ["\n".join(["| what | measured | wanted |", "|---|---|---|", *rows]), where]
    return "\n\n".join(parts) + "\n"


def main(args: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    output = parser.parse_args(args).output
    with tempfile.TemporaryDirectory() as place:
        found = measure(Path(place))
    hardware = environment()
    write_json(output / "report_scale.json", {"environment": hardware, **found})
    write_text(output / "report_scale.md", markdown(found, hardware))


if __name__ == "__main__":
    main()
