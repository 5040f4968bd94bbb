"""What a comparison costs beside training and evaluation: the whole command against the same runs' `fit` and `test`.

python -m benchmarks.compare_overhead --output runs/compare_overhead

The 9 runs of `make demo`. One side is `structured-init compare` from the start of the command to its end: imports,
checks, runs, report. The other is each run in a process of its own, of which only `Trainer.fit` and `Trainer.test`
count. Both sides start at the same moment, so that what else the machine does meets them alike. Seconds are those of
the processor, of all processes of a side: the clock would also count that 9 runs do not divide by the 2 at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from comparison.command.options import compare_parser
from comparison.run.environment import environment
from comparison.run.prepare import prepare
from comparison.run.run import Run, train
from structured_init.files import write_json, write_text

RUNS = ["-c", "vit_digits", "--inits", "default,sincos,mimetic_host", "--seeds", "0,1,2", "--parallel", "2"]
# Run a command; write the processor's seconds of all it started, also of what outlives it (PR_SET_CHILD_SUBREAPER).
MEASURE = """
import ctypes, json, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
code = subprocess.call(sys.argv[2:])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(json.dumps({"seconds": used.ru_utime + used.ru_stime}))
sys.exit(code)
"""


def main() -> None:
    """Measure, and write what was seen; or be one of the single runs."""
    arguments = parse()
    if arguments.one:
        torch.set_num_threads(1)
        seconds = timing_trainer()
        train(Run(arguments.output, json.loads(arguments.one.read_text())))
        write_json(arguments.one.with_suffix(".seconds.json"), seconds)
        return
    words = [*RUNS, "--output", str(arguments.output / "comparison"), "--trainer.max_epochs", str(arguments.epochs)]
    options, further = compare_parser().parse_known_args(words)
    runs = prepare(options, further, "").runs(identity="")
    arguments.output.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(comparison, words, arguments.output / "comparison.seconds.json")
        single = pool.submit(lambda: [alone(run, arguments.output / "single" / str(i)) for i, run in enumerate(runs)])
    write(arguments, whole.result(), single.result())


def timing_trainer() -> dict[str, float]:
    """Let Lightning's trainer count the processor's seconds of its fits and tests; give where it counts them."""
    seconds = {"fit": 0.0, "test": 0.0}

    def counted(name: str) -> Any:
        whole = getattr(Trainer, name)

        def call(*given: Any, **named: Any) -> Any:
            begin = time.process_time()
            try:
                return whole(*given, **named)
            finally:
                seconds[name] += time.process_time() - begin

        return call

    for name in seconds:
        setattr(Trainer, name, counted(name))
    return seconds


def alone(run: Run, folder: Path) -> float:
    """Return the seconds of a run's fit and test, in a process and a folder of its own."""
    place = "--trainer.logger.init_args.folder="
    words = [f"{place}{folder.resolve()}" if word.startswith(place) else word for word in run.settings["arguments"]]
    file = folder.with_name(f"{folder.name}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**run.settings, "arguments": words}))
    call(["-m", "benchmarks.compare_overhead", "--one", str(file), "--output", str(folder.resolve())])
    return sum(json.loads(file.with_suffix(".seconds.json").read_text()).values())


def comparison(words: list[str], file: Path) -> float:
    """Return the seconds of a whole comparison, of all its processes."""
    call(["-c", MEASURE, str(file), sys.executable, "-m", "lightning_modules.cli", "compare", *words, "--no-open"])
    return json.loads(file.read_text())["seconds"]


def call(command: list[str]) -> None:
    """Run python."""
    quiet = subprocess.DEVNULL
    subprocess.run(
        [sys.executable, *command], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=quiet, stderr=quiet, check=True
    )


def write(arguments: argparse.Namespace, whole: float, single: list[float]) -> None:
    """Write the table."""
    total = sum(single)
    said = "\n".join((__doc__ or "").split("\n")[4:]).strip()
    text = [
        "# What a comparison costs beside training and evaluation",
        f"\n    structured-init compare {' '.join(RUNS)} --trainer.max_epochs {arguments.epochs}",
        f"\n{said}\n",
        f"| | fit and test of {len(single)} runs | mean of one | comparison | comparison / fit and test |",
        "|---|---|---|---|---|",
        f"| seconds of the processor | {total:.0f} | {total / len(single):.1f} | {whole:.0f} | {whole / total:.3f} |",
        "\n" + ", ".join(f"{name} {value}" for name, value in environment().items()) + ".",
        f"\n{arguments.note}\n" if arguments.note else "",
        "Made by `python -m benchmarks.compare_overhead`.",
    ]
    write_text(arguments.output / "compare_overhead.md", "\n".join(text) + "\n")
    print(f"wrote {arguments.output / 'compare_overhead.md'}")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
