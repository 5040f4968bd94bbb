"""Kill a comparison at random moments, and compare what it ends with with an undisturbed one, bit for bit.

python -m benchmarks.compare_kills --kills 20 --output runs/compare_kills
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from comparison.runs.folder import Run, find_runs
from comparison.tables import count
from comparison.train.run import environment
from comparison.train.run_log import read_rows
from structured_init.util.files import write_text

DIGITS = [
    *("-c", "vit_digits", "--inits", "default,sincos", "--seeds", "0,1", "--parallel", "2"),
    *("--trainer.max_epochs", "12", "--attention.samples", "2"),
]


def kill_and_compare(arguments: Sequence[str], kills: int, seed: int, output: Path, longest: float) -> list[str]:
    """Kill a comparison so many times, let it end, and compare it with one that was left alone.

    Where it ends before it was killed often enough, it is compared, and another one is killed in a new folder.

    Args:
        arguments: of ``compare``, without ``--output``.
        kills: how many; each ends the whole process group with SIGKILL.
        seed: of the moments: a fifth of them before the first run starts or goes on, the others after up to 6 more
            rows of metrics (a row or two per epoch) and up to ``longest`` more seconds.
        output: folder for both.
        longest: seconds.

    Returns:
        A line for each kill: what was running.

    Raises:
        AssertionError: something differs; says what.
    """
    moments = random.Random(seed)
    undisturbed = output / "undisturbed"
    assert finish(undisturbed, arguments) == 0
    lines: list[str] = []
    number, startup = 0, 5.0
    while len(lines) < kills:
        folder = output / f"killed_{number}"
        process, begin = start(folder, arguments), time.time()
        early = moments.random() < 0.2
        delay = moments.uniform(0, startup if early else longest)
        if not early and wait_for_a_run(process, folder, begin):
            startup = time.time() - begin
            wait_for_rows(process, folder, rows(folder) + moments.randint(0, 6))
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            lines.append(f"{len(lines) + 1}. {time.time() - begin:.1f} s after its start: {state(folder, begin)}")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            continue
        assert process.returncode == 0, f"the comparison ended with exit code {process.returncode}"
        assert_same(undisturbed, folder)
        number += 1
    folder = output / f"killed_{number}"
    assert finish(folder, arguments) == 0
    assert_same(undisturbed, folder)
    return lines


def start(folder: Path, arguments: Sequence[str]) -> subprocess.Popen:
    """Start a comparison in a process group of its own."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "lightning_modules.cli", "compare", *arguments, "--output", str(folder)]
    with folder.with_suffix(".txt").open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)


def finish(folder: Path, arguments: Sequence[str]) -> int:
    """Run a comparison to its end."""
    return start(folder, arguments).wait()


def wait_for_a_run(process: subprocess.Popen, folder: Path, since: float) -> bool:
    """Wait until a run starts or goes on; tell whether one did before the comparison ended."""
    while process.poll() is None:
        if any(log.stat().st_mtime >= since for log in folder.glob("runs/**/seed_*.log")):
            return True
        time.sleep(0.05)
    return False


def wait_for_rows(process: subprocess.Popen, folder: Path, number: int) -> None:
    """Wait until the runs have logged so many rows, so that a slow machine is killed as far on as a fast one."""
    while process.poll() is None and rows(folder) < number:
        time.sleep(0.05)


def rows(folder: Path) -> int:
    """Return how many rows all runs have logged."""
    return sum(len(read_rows(path)) for path in folder.glob("runs/**/metrics.csv"))


def state(folder: Path, since: float) -> str:
    """Say what a comparison does at this moment."""
    runs = find_runs(folder)
    complete = sum(run.result_file.is_file() for run in runs)
    active = [run for run in runs if not run.result_file.is_file() and run.beside(".log").stat().st_mtime >= since]
    where = [f"{run.name} after {count(len(read_rows(run.folder / 'metrics.csv')), 'row')}" for run in active]
    return f"{complete} complete; " + ("; ".join(where) or "no run at work")


def assert_same(one: Path, other: Path) -> None:
    """Compare everything that does not tell the time: results, logged values, weights, maps, representations."""
    pairs = [(run, replace(run, folder=other / run.folder.relative_to(one)).latest()) for run in find_runs(one)]
    assert pairs, "nothing was run"
    for left, right in pairs:
        assert left.complete, left.folder
        assert right.complete, right.folder
        results = [{k: v for k, v in run.result.items() if "seconds" not in k} for run in (left, right)]
        assert results[0] == results[1], f"the results of {right.folder} differ"
        rows = [logged(run) for run in (left, right)]
        assert rows[0] == rows[1], f"the metrics of {right.folder} differ"
        states = [torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True) for run in (left, right)]
        assert_equal(states[0]["state_dict"], states[1]["state_dict"], right.folder)
        assert_equal(states[0]["optimizer_states"], states[1]["optimizer_states"], right.folder)
        names = [{path.relative_to(run.folder) for path in run.folder.rglob("*.safetensors")} for run in (left, right)]
        assert names[0] == names[1], f"{right.folder} has other files"
        for name in names[0]:
            assert (left.folder / name).read_bytes() == (right.folder / name).read_bytes(), right.folder / name


def logged(run: Run) -> list[dict[str, str]]:
    """Return all rows of a run without the times."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_rows(run.folder / "metrics.csv")]


def assert_equal(one: object, other: object, where: Path) -> None:
    """Compare nested states bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), f"tensors in {where} differ"  # type: ignore[arg-type]
    elif isinstance(one, (dict, list, tuple)):
        assert len(one) == len(other), where  # type: ignore[arg-type]
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_equal(one[key], other[key], where)  # type: ignore[index]
    else:
        assert one == other, f"{one} and {other} in {where} differ"


def main() -> None:
    """Kill, compare, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=4.0, help="seconds after the chosen row")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = kill_and_compare(DIGITS, arguments.kills, arguments.seed, arguments.output, arguments.longest)
    text = [
        "# A comparison that was killed",
        f"\n    structured-init compare {' '.join(DIGITS)}",
        f"\n{len(lines)} times SIGKILL to all of its processes (seed {arguments.seed}), each time the same command "
        "again. At the end results, all logged values but times, weights, optimizer states, attention maps and "
        "representations were equal, bit for bit, to those of a comparison that was left alone.\n",
        *lines,
        "\n" + ", ".join(f"{name} {value}" for name, value in environment().items()) + ".",
        "\nMade by `python -m benchmarks.compare_kills`.",
    ]
    write_text(arguments.output / "compare_kills.md", "\n".join(text) + "\n")
    print(f"wrote {arguments.output / 'compare_kills.md'}")


if __name__ == "__main__":
    main()
