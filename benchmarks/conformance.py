"""In how many models of other libraries is attention found, checked, initialized and captured?

    python -m benchmarks.conformance --output benchmarks/results
    python -m benchmarks.conformance --libraries timm --only swin   # a look at a few

One small random model per architecture of the installed libraries, each in a process of its own that is forked from a
warm one. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.conformance_models import LIBRARIES, installed_versions
from structured_init import Impulse, Mimetic, StructuredInitError, attention_sites, initialize
from structured_init.analysis import capture_attention
from structured_init.host_inputs import as_inputs, host_inputs
from structured_init.plan import Weights
from structured_init.sites.watched import watched_attention

TIME_LIMIT = 240  # seconds for one model
OTHER = (
    "it attends between channels",
    "no softmax lies between",
)


def examined(model: nn.Module, batch: object) -> dict[str, object]:
    """Find, check, plan and capture, and return one row of the table."""
    begin = time.perf_counter()
    weights = Weights(model, batch=batch)
    seen = watched_attention(weights)
    if weights.unwatched:
        return {"failed": weights.unwatched}
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    args, kwargs = as_inputs(batch)
    with torch.no_grad():
        model(*args, **kwargs)
    forward = time.perf_counter() - begin
    found = [each for each in seen if not (each.reason or "").startswith(OTHER)]
    known = {site.name for site in attention_sites(weights, cross=True)}
    return {
        "model": type(model).__name__,
        "layers": len(found),
        "other": len(seen) - len(found),
        "known": sum(each.layout is not None for each in found),
        "written": sum(site.how == "written" for site in attention_sites(weights, cross=True)),
        "error": max((each.evidence.error for each in found if each.layout is not None), default=None),
        "reasons": sorted({each.reason for each in seen if each.reason}),
        "sites": len(known),
        "mimetic": planned(model, Mimetic(positions="keep", cross=True), batch),
        "impulse": planned(model, Impulse(positions="keep"), batch),
        "capture": captured(model, args, kwargs),
        "seconds": round(seconds, 3),
        "forwards": round(seconds / max(forward, 1e-9), 1),
    }


def planned(model: nn.Module, initializer: object, batch: object) -> str:
    """Return ``"yes"``, or why an initializer does not fit."""
    try:
        initialize(model, initializer, batch=batch, dry_run=True)
    except StructuredInitError as error:
        return str(error)
    return "yes"


def captured(model: nn.Module, args: tuple, kwargs: dict) -> str:
    """Return how many maps are captured and what their rows sum to; they are not compared with eager attention."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            maps = capture_attention(model, *args, max_megabytes=2048, **kwargs)
    except (StructuredInitError, RuntimeError, TypeError) as error:
        return str(error).splitlines()[0][:200]
    sums = [float(each.sum(-1).mean()) for each in maps.values()]
    return f"{len(maps)} maps, rows sum to {min(sums, default=0):.3f} to {max(sums, default=0):.3f}"


def in_a_fork(work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Do something in a forked process, and return what it returns; a crash or the time limit is a row too."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(TIME_LIMIT)
        try:
            row = work()
        except BaseException as error:
            row = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
        os.write(writing, json.dumps(row).encode())
        os._exit(0)
    os.close(writing)
    text = b""
    while part := os.read(reading, 1 << 16):
        text += part
    os.close(reading)
    os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": f"more than {TIME_LIMIT} s or out of memory"}


def row_of(build: Callable[[], tuple[nn.Module, object]]) -> dict[str, object]:
    """Build a model and examine it."""
    torch.manual_seed(0)
    try:
        model, batch = build()
        model.eval()
        if batch is None and (inputs := host_inputs(model, batch=1)) is None:
            return {"unbuilt": "the host does not say what it takes"}
        batch = (inputs[1] or inputs[0]) if batch is None else batch
    except Exception as error:
        return {"unbuilt": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}
    return examined(model, batch)


def shares(rows: list[dict[str, object]]) -> dict[str, object]:
    """Count, of one library: models with softmax attention over tokens, and those in which every layer is known."""
    attending = [row for row in rows if row.get("layers")]
    return {
        "models": len(rows),
        "not built": sum("unbuilt" in row for row in rows),
        "failed": sum("failed" in row for row in rows),
        "attending": len(attending),
        "all known": sum(row["known"] == row["layers"] for row in attending),
        "some known": sum(0 < row["known"] < row["layers"] for row in attending),
        "largest error": max((row["error"] for row in attending if row["error"] is not None), default=None),
        "mimetic": sum(row["mimetic"] == "yes" for row in attending),
        "impulse": sum(row["impulse"] == "yes" for row in attending),
    }


def page(result: dict[str, object]) -> str:
    """Return the result as a page of Markdown."""
    lines = ["# Attention of other libraries' models", ""]
    for name, rows in result["libraries"].items():
        count = shares(rows)
        share = 100 * count["all known"] / max(count["attending"], 1)
        lines.append(
            f"- **{name} {result['versions'].get(name, '')}: {share:.0f} %**, all layers found and checked in "
            f"{count['all known']} of {count['attending']} models with softmax attention between tokens"
        )
    lines += [
        "",
        "`python -m benchmarks.conformance --output benchmarks/results`. A layer is known where four matrices per head",
        "were found in one forward pass and predict its logits and outputs; *error* is the larger of their relative",
        "errors. Mimetic and Impulse are planned without writing. *Forwards* is what finding costs, in forward passes.",
    ]
    for name, rows in result["libraries"].items():
        lines += ["", f"## {name}", "", "| model | layers | known | error | Mimetic | Impulse | capture | forwards |"]
        lines.append("|---|---|---|---|---|---|---|---|")
        lines += [_line(row) for row in rows if row.get("layers")]
        reasons = [f"- {row['name']}: {'; '.join(row['reasons'])}" for row in rows if row.get("reasons")]
        lines += ["", "What has no layout, and why:", "", *reasons] if reasons else []
        missed = [(row["name"], row.get("unbuilt") or row.get("failed")) for row in rows]
        left = [f"- {model}: {why}" for model, why in missed if why]
        lines += ["", "Not examined:", "", *left] if left else []
    return "\n".join(lines) + "\n"


def _line(row: dict[str, object]) -> str:
    error = "" if row["error"] is None else f"{row['error']:.0e}"
    marks = ["yes" if row[name] == "yes" else "no" for name in ("mimetic", "impulse")]
    captured = row["capture"].partition(" maps")[0] if " maps" in row["capture"] else "no"
    cells = (row["name"], row["layers"], row["known"], error, *marks, captured, row["forwards"])
    return f"| {' | '.join(map(str, cells))} |"


def main(args: list[str] | None = None) -> int:
    """Examine the models and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for conformance.json and conformance.md")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--only", default="", help="part of a model's name")
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    result: dict[str, object] = {"versions": installed_versions(), "libraries": {}}
    for library in given.libraries:
        if library not in result["versions"]:
            print(f"{library} is not installed and left out", file=sys.stderr)
            continue
        rows = []
        for name, build in LIBRARIES[library]().items():
            if given.only in name:
                rows.append({"name": name, **in_a_fork(lambda build=build: row_of(build))})
                print(library, json.dumps(rows[-1]), flush=True)
        result["libraries"][library] = rows
        print(library, shares(rows), file=sys.stderr, flush=True)
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        (given.output / "conformance.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (given.output / "conformance.md").write_text(page(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
