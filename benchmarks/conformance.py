"""In how many models of other libraries is attention found, checked, initialized and captured?

    python -m benchmarks.conformance --output benchmarks/results
    python -m benchmarks.conformance --libraries timm --only swin   # a look at a few; with --output their rows alone

One small random model per architecture of the installed libraries, each in a process of its own that is forked from a
warm one. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.conformance_eager import EQUAL, compared, eager_maps
from benchmarks.conformance_models import LIBRARIES, calibrate, installed_versions
from structured_init import Impulse, Mimetic, StructuredInitError, attention_sites, initialize
from structured_init.analysis import capture_attention
from structured_init.hosts.depthwise import depthwise_conv_sites, is_depthwise
from structured_init.hosts.state_space import state_space_sites, unknown_state_spaces
from structured_init.hosts.watched import watched_attention
from structured_init.inputs import as_inputs, host_inputs
from structured_init.weights import Weights

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
    if weights.seen.why_not:
        return {"failed": weights.seen.why_not.splitlines()[0][:200]}
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    args, kwargs = as_inputs(batch)
    with torch.no_grad():
        model(*args, **kwargs)
    forward = time.perf_counter() - begin
    found = [each for each in seen if not (each.reason or "").startswith(OTHER)]
    scans = [site.name for site in state_space_sites(weights)]
    return {
        "layers": len(found),
        "known": sum(each.layout is not None for each in found),
        "written": sum(site.how == "written" for site in attention_sites(weights, cross=True)),
        "error": max((each.evidence.error for each in found if each.layout is not None), default=None),
        "reasons": sorted({each.reason for each in seen if each.reason}),
        "depthwise": [len(depthwise_conv_sites(weights)), sum(map(is_channelwise, model.modules()))],
        "scans": [len(scans), len(scans) + len(unknown_state_spaces(weights.modules))],
        "mimetic": planned(model, Mimetic(positions="keep", cross=True), batch),
        "impulse": planned(model, Impulse(positions="keep"), batch),
        "capture": captured(model, args, kwargs),
        "seconds": round(seconds, 3),
        "forwards": round(seconds / max(forward, 1e-9), 1),
    }


def is_channelwise(module: nn.Module) -> bool:
    """Say whether a module of any class convolves each of its channels alone, at more than one place."""
    weight = getattr(module, "weight", None)
    groups = getattr(module, "groups", None)
    if not (isinstance(groups, int) and isinstance(weight, torch.Tensor) and weight.ndim > 2):
        return False
    return is_depthwise(module) or (weight.shape[2:].numel() > 1 and groups == weight.shape[0] > 1 == weight.shape[1])


def planned(model: nn.Module, initializer: object, batch: object) -> bool:
    """Return whether an initializer fits."""
    try:
        initialize(model, initializer, batch=batch, dry_run=True)
    except StructuredInitError:
        return False
    return True


def captured(model: nn.Module, args: tuple, kwargs: dict) -> dict[str, object] | str:
    """Return how many maps are captured, how many of them the host shows too, and how far those differ."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            maps = capture_attention(model, args, max_megabytes=2048, **kwargs)
            number, difference = compared(maps, eager_maps(model, args, kwargs))
    except (StructuredInitError, RuntimeError, TypeError) as error:
        return str(error).splitlines()[0][:200]
    return {"maps": len(maps), "compared": number, "difference": float(f"{difference:.1e}")}


def in_a_fork(work: Callable[[], dict[str, object]], limit: int = TIME_LIMIT) -> dict[str, object]:
    """Do something in a forked process, and return what it returns; a crash or the time limit is a row too."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(limit)
        try:
            row = work()
        except BaseException as error:
            row = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}
        os.write(writing, json.dumps(row).encode())
        os._exit(0)
    os.close(writing)
    text = b""
    while part := os.read(reading, 1 << 16):
        text += part
    os.close(reading)
    os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": f"more than {limit} s or out of memory"}


def row_of(build: Callable[[], tuple[nn.Module, object]]) -> dict[str, object]:
    """Build a model and examine it."""
    torch.manual_seed(0)
    try:
        model, batch = build()
        model.eval()
        if batch is None and (inputs := host_inputs(model, batch=1)) is None:
            return {"unbuilt": "the host does not say what it takes"}
        batch = (inputs[1] or inputs[0]) if batch is None else batch
        calibrate(model, *as_inputs(batch))
    except Exception as error:
        return {"unbuilt": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}
    return examined(model, batch)


def shares(rows: list[dict[str, object]]) -> dict[str, object]:
    """Count, of one library: models with softmax attention over tokens, and those in which every layer is known."""
    attending = [row for row in rows if row.get("layers")]
    examined = [row for row in rows if "scans" in row]
    return {
        "models": len(rows),
        "not built": sum("unbuilt" in row for row in rows),
        "failed": sum("failed" in row for row in rows),
        "attending": len(attending),
        "all known": sum(row["known"] == row["layers"] for row in attending),
        "some known": sum(0 < row["known"] < row["layers"] for row in attending),
        "largest error": max((row["error"] for row in attending if row["error"] is not None), default=None),
        "mimetic": sum(row["mimetic"] is True for row in attending),
        "impulse": sum(row["impulse"] is True for row in attending),
        "shown": sum(_shown(row) for row in attending),
        "equal": sum(_shown(row) and _equal(row) for row in attending),
        **{name: [sum(row[name][k] for row in examined) for k in (0, 1)] for name in ("depthwise", "scans")},
    }


def _shown(row: dict[str, object]) -> bool:
    """Say whether the host shows maps that were captured."""
    return isinstance(row.get("capture"), dict) and row["capture"]["compared"] > 0


def _equal(row: dict[str, object]) -> bool:
    return row["capture"]["difference"] <= EQUAL


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
        rest = [f"{ours} of {every} {what}" for what, (ours, every) in _blocks(count) if every]
        if count["shown"]:
            rest.append(f"captured maps equal to the host's own in {count['equal']} of {count['shown']} models")
        lines += [f"  ({'; '.join(rest)})"] if rest else []
    lines += [
        "",
        "`python -m benchmarks.conformance --output benchmarks/results`. A layer is known where four matrices per head",
        "were found in one forward pass and predict its logits and outputs; *error* is the larger of their relative",
        "errors. Mimetic and Impulse are planned without writing. *Captured* says whether the captured maps are those",
        f"of the host's own eager attention, to {EQUAL:g}, how many of them it shows, or how far they differ: of other",
        "hosts than transformers what is compared is the factor that multiplies the values, behind talking heads or a",
        "mixture of maps. *Depthwise* and *scans* (state-space layers) are known of those there are, by what they are",
        "called or how they are built.",
        "*Seconds* and *forwards* are what finding costs, on one thread and in forward passes. Batch norms have the",
        "statistics of the batch; a model of transformers is drawn with a standard deviation of 0.2, so that maps are",
        "not uniform. `--resume` goes on where a run ended.",
    ]
    cells = ["model", "layers", "known", "error", "Mimetic", "Impulse", "captured"]
    cells += ["depthwise", "scans", "seconds", "forwards"]
    for name, rows in result["libraries"].items():
        lines += ["", f"## {name}", "", f"| {' | '.join(cells)} |", "|---" * len(cells) + "|"]
        lines += [_line(row) for row in rows if row.get("layers") or row.get("scans", (0, 0))[1]]
        reasons = [f"- {row['name']}: {'; '.join(_several(row['reasons']))}" for row in rows if row.get("reasons")]
        lines += ["", "What has no layout, and why:", "", *reasons] if reasons else []
        missed = [(row["name"], row.get("unbuilt") or row.get("failed")) for row in rows]
        left = [f"- {model}: {' '.join(why.split())}" for model, why in missed if why]
        lines += ["", "Not examined:", "", *left] if left else []
    return "\n".join(lines) + "\n"


def _blocks(count: dict[str, object]) -> tuple[tuple[str, list[int]], ...]:
    return (
        ("depthwise convolutions", count["depthwise"]),
        ("state-space layers", count["scans"]),
    )


def _several(reasons: list[str]) -> list[str]:
    """Return reasons that differ in more than numbers and names, each once."""
    return list({re.sub(r"\d|'[^']*'|\(.*?\)", "", reason): reason for reason in reversed(reasons)}.values())[::-1]


def _line(row: dict[str, object]) -> str:
    error = "" if row["error"] is None else f"{row['error']:.0e}"
    marks = ["yes" if row[name] is True else "no" for name in ("mimetic", "impulse")]
    blocks = [_of(*row[name]) if name in row else "" for name in ("depthwise", "scans")]
    cells = (row["name"], row["layers"], row["known"], error, *marks, _captured(row.get("capture")), *blocks)
    return f"| {' | '.join(map(str, (*cells, row['seconds'], row['forwards'])))} |"


def _captured(capture: dict[str, object] | str | None) -> str:
    if not isinstance(capture, dict):
        return "no" if capture else ""
    if not capture["compared"]:
        return f"{capture['maps']}, not shown"
    equal = "equal" if capture["difference"] <= EQUAL else f"{capture['difference']:.0e}"
    return equal if capture["compared"] == capture["maps"] else f"{equal}, {_of(capture['compared'], capture['maps'])}"


def _of(ours: int, every: int) -> str:
    return str(ours) if ours == every else f"{ours} of {every}"


def main(args: list[str] | None = None) -> int:
    """Examine the models and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for conformance.json and conformance.md")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of models' names")
    parser.add_argument("--resume", action="store_true", help="leave out models that the output has rows of")
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    result: dict[str, object] = {"versions": installed_versions(), "libraries": {}}
    for library in given.libraries:
        if library not in result["versions"]:
            print(f"{library} is not installed and left out", file=sys.stderr)
            continue
        there = {row["name"] for row in rows_of(given.output).get(library, ()) if "scans" in row and given.resume}
        rows = result["libraries"].setdefault(library, [])
        for name, build in LIBRARIES[library]().items():
            if name in there or not any(part in name for part in given.only):
                continue
            rows.append({"name": name, **in_a_fork(lambda build=build: row_of(build))})
            print(library, json.dumps(rows[-1]), flush=True)
            if given.output:
                write(given.output, result)
        print(library, shares(rows), file=sys.stderr, flush=True)
    return 0


def rows_of(folder: Path | None) -> dict[str, list[dict[str, object]]]:
    """Return library → rows of an earlier run."""
    path = None if folder is None else folder / "conformance.json"
    return json.loads(path.read_text(encoding="utf-8"))["libraries"] if path and path.exists() else {}


def write(folder: Path, result: dict[str, object]) -> None:
    """Write the page and its numbers, a line a model; models that were not run again keep their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    before, libraries = rows_of(folder), {}
    for name in LIBRARIES:
        rows = {row["name"]: row for row in (*before.get(name, ()), *result["libraries"].get(name, ()))}
        if rows:
            libraries[name] = list(rows.values())
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "]" for name, rows in libraries.items())
    (folder / "conformance.json").write_text(
        f'{{"versions": {json.dumps(result["versions"])}, "libraries": {{\n{text}\n}}}}\n', encoding="utf-8"
    )
    whole = {"versions": result["versions"], "libraries": libraries}
    (folder / "conformance.md").write_text(page(whole), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
