"""What a comparison costs beside its runs: the whole command against the same runs started one by one.

python -m benchmarks.compare_overhead --output runs/compare_overhead

12 runs of one thread each. One side is `structured-init compare`, one run at a time, from the start of the command to
its end: checks, runs, report. The other is each run in a process of its own that trains and tests it and does nothing
else. Both sides start at the same moment, so that what else the machine does meets them alike; the side that ends
first leaves the other more of the machine, which favours the other. Overhead is comparison / sum of the runs − 1, by
the clock and in seconds of the processor, which other processes do not touch.
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

import torch

from comparison.command.options import compare_parser
from comparison.run.environment import environment
from comparison.run.prepare import prepare
from comparison.run.run import Run, train
from structured_init.files import write_text

RUNS = ["-c", "vit_digits", "--inits", "default,sincos,mimetic_host", "--seeds", "0-3", "--threads", "1"]
Seconds = dict[str, float]


def main() -> None:
    """Measure, and write what was seen; or be one of the single runs."""
    arguments = parse()
    if arguments.one:
        torch.set_num_threads(1)
        train(Run(arguments.output, json.loads(arguments.one.read_text())))
        return
    words = [*RUNS, "--output", str(arguments.output / "comparison"), "--trainer.max_epochs", str(arguments.epochs)]
    options, further = compare_parser().parse_known_args(words)
    runs = prepare(options, further, "").runs(identity="")
    arguments.output.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(timed, ["-m", "lightning_modules.cli", "compare", *words, "--no-open"])
        single = pool.submit(lambda: [alone(run, arguments.output / "single" / str(i)) for i, run in enumerate(runs)])
    write(arguments, whole.result(), single.result())


def alone(run: Run, folder: Path) -> Seconds:
    """Time a run in a process of its own, in a folder of its own."""
    place = "--trainer.logger.init_args.folder="
    words = [f"{place}{folder.resolve()}" if word.startswith(place) else word for word in run.settings["arguments"]]
    file = folder.with_name(f"{folder.name}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**run.settings, "arguments": words}))
    return timed(["-m", "benchmarks.compare_overhead", "--one", str(file), "--output", str(folder.resolve())])


def timed(command: list[str]) -> Seconds:
    """Run python; return the seconds of the clock, and those of the processor with all that the process waited for."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with exit code {process.returncode}")
    return {"clock": time.perf_counter() - begin, "processor": usage.ru_utime + usage.ru_stime}


def write(arguments: argparse.Namespace, whole: Seconds, single: list[Seconds]) -> None:
    """Write the table."""
    kinds = ("clock", "processor")
    total = {kind: sum(seconds[kind] for seconds in single) for kind in kinds}
    rows = [
        f"| {kind} | {total[kind]:.0f} | {total[kind] / len(single):.1f} | {whole[kind]:.0f} | "
        f"{100 * (whole[kind] / total[kind] - 1):+.1f} % |"
        for kind in kinds
    ]
    said = "\n".join((__doc__ or "").split("\n")[4:]).strip()
    text = [
        "# What a comparison costs beside its runs",
        f"\n    structured-init compare {' '.join(RUNS)} --trainer.max_epochs {arguments.epochs}",
        f"\n{said}\n",
        f"| seconds of the | {len(single)} runs one by one | mean of one | comparison | overhead |",
        "|---|---|---|---|---|",
        *rows,
        "\nA comparison trains its runs in one process, which imports the libraries once; alone, each run does.",
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
