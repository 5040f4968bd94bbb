"""What it costs until a command answers: CPU seconds of new processes, as ratios to what each has to import.

    python -m benchmarks.command_startup --output benchmarks/results

``--help`` of a command may cost 1.3 times ``import torch``, that of ``fit`` 1.3 times ``import lightning.pytorch.cli``,
and reading the results of a comparison 1.3 times ``import pandas``. Processes take turns in one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.timing import alternate, spread
from structured_init.files import write_json, write_text

RESULTS = "benchmarks/results/compare_digits"


class Claim(NamedTuple):
    """What a command costs at most, as a multiple of a reference."""

    command: str
    reference: str
    bound: float


REFERENCES = {
    "import torch": ["-c", "import torch"],
    "import lightning.pytorch.cli": ["-c", "import lightning.pytorch.cli"],
    "import pandas": ["-c", "import pandas"],
}
COMMANDS = {
    "structured-init --help": ["-m", "lightning_modules.cli", "--help"],
    "structured-init compare --help": ["-m", "lightning_modules.cli", "compare", "--help"],
    "structured-init report --help": ["-m", "lightning_modules.cli", "report", "--help"],
    "structured-init fit --help": ["-m", "lightning_modules.cli", "fit", "--help"],
    "structured-init show --help": ["-m", "lightning_modules.cli", "show", "--help"],
    "load_results": [
        "-c",
        f"from comparison.results.records import load_results; load_results({RESULTS!r})",
    ],
}
CLAIMS = (
    Claim("structured-init --help", "import torch", 1.3),
    Claim("structured-init compare --help", "import torch", 1.3),
    Claim("structured-init report --help", "import torch", 1.3),
    Claim("structured-init fit --help", "import lightning.pytorch.cli", 1.3),
    Claim("structured-init show --help", "import lightning.pytorch.cli", 1.3),
    Claim("load_results", "import pandas", 1.3),
)


def cpu_seconds(arguments: Sequence[str]) -> float:
    """Return the processor time, user and system, of a new interpreter and its children."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def measure(rounds: int) -> dict[str, Any]:
    """Time every reference and command, in turn, after one round that fills the caches of the system."""
    processes = {**REFERENCES, **COMMANDS}
    contestants = {name: lambda arguments=arguments: cpu_seconds(arguments) for name, arguments in processes.items()}
    alternate(contestants, 1)
    return {"rounds": rounds, "seconds": alternate(contestants, rounds)}


def ratios(record: dict[str, Any]) -> list[tuple[Claim, float]]:
    """Return the median of each claim's ratios, taken within a round."""
    seconds = record["seconds"]
    return [
        (claim, median(a / b for a, b in zip(seconds[claim.command], seconds[claim.reference], strict=True)))
        for claim in CLAIMS
    ]


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    seconds = record["seconds"]
    lines = [
        "# What it costs until a command answers",
        "",
        "    python -m benchmarks.command_startup --output benchmarks/results",
        "",
        f"CPU seconds, user and system, of a new process: median and quartiles of {record['rounds']} rounds.",
        "",
        "| | CPU s | reference | ratio | wanted at most |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `{name}` | {spread(seconds[name], 2)} | | | |" for name in REFERENCES]
    for (command, reference, bound), ratio in ratios(record):
        lines.append(f"| `{command}` | {spread(seconds[command], 2)} | `{reference}` | {ratio:.2f} | {bound} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    record = measure(arguments.rounds)
    write_json(arguments.output / "command_startup.json", record)
    write_text(arguments.output / "command_startup.md", table(record))
    print(table(record))


if __name__ == "__main__":
    main()
