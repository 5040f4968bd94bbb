"""Does the test suite see bugs? Put each bug of ``mutation_list.py`` into a copy of the tree and run the tests for it.

    python -m benchmarks.mutations --output benchmarks/results

The libraries are imported once; each bug is tried in a process forked from that one, which imports this project's
files with the bug in them. Only what ``make test`` runs can catch it: no slow or distributed tests, no checks of types.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.mutation_list import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
HOSTS = (
    *("torch", "torchvision", "timm", "transformers", "lightning.pytorch", "torchmetrics", "datasets", "jsonargparse"),
    *("pandas", "scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "torch._subclasses.fake_tensor"),
)
CAUGHT, MISSED = 1, 0  # pytest's exit codes: some test failed, all passed
TIME_LIMIT = 600  # seconds for one bug; a bug may also make a loop endless
AS_MAKE_TEST = ("-m", "not slow and not distributed", "--jaxtyping-packages=")


def copy_of_the_tree(folder: Path) -> None:
    """Copy what git tracks, with changes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if not name.startswith("benchmarks/results/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, tests: list[str], log: Path) -> None:
    """Run pytest in this process, which is a child of the warm one, and end with its exit code."""
    signal.alarm(TIME_LIMIT)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # of the processes that tests start
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = 99
    with contextlib.suppress(BaseException):
        import pytest

        quiet = ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "--tb=line"]
        code = int(pytest.main([*quiet, *AS_MAKE_TEST, *tests]))
    sys.stdout.flush()
    os._exit(code)


class Trial:
    """One bug, put into a copy of the tree of its own, and the process that runs its tests."""

    def __init__(self, mutation: Mutation, folder: Path) -> None:
        self.mutation, self.folder, self.log = mutation, folder, folder.with_suffix(".log")
        self.path = folder / mutation.file
        self.right = self.path.read_text(encoding="utf-8")
        if (times := self.right.count(mutation.old)) != 1:
            raise SystemExit(f"{mutation.file} holds {mutation.old!r} {times} times: it must stand there once")
        self.path.write_text(self.right.replace(mutation.old, mutation.new), encoding="utf-8")
        self.begin = time.monotonic()
        self.process = os.fork()
        if self.process == 0:
            run_tests(folder, [f"tests/{name}" for name in mutation.tests.split()], self.log)

    def outcome(self, status: int, cpu_seconds: float) -> dict[str, object]:
        """Take the bug out again, and return what the tests said of it."""
        self.path.write_text(self.right, encoding="utf-8")
        code = os.waitstatus_to_exitcode(status)
        lines = self.log.read_text(errors="replace").splitlines()
        failed = [line.partition(" ")[2].partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
        if code == -signal.SIGALRM:
            failed = [f"no end within {TIME_LIMIT} s"]
        outcome = {CAUGHT: "caught", MISSED: "missed", -signal.SIGALRM: "caught"}.get(code, f"pytest ended with {code}")
        return {
            **self.mutation._asdict(), "outcome": outcome, "seen_by": failed[0] if failed else "",
            "cpu_seconds": round(cpu_seconds, 1), "seconds": round(time.monotonic() - self.begin, 1),
        }  # fmt: skip


def tried(mutations: list[Mutation], folders: list[Path]) -> Iterator[tuple[int, dict[str, object]]]:
    """Try bugs, one at a time in each folder, and yield number and outcome of each as it ends."""
    waiting, running = list(enumerate(mutations))[::-1], {}
    while waiting or running:
        while waiting and folders:
            number, mutation = waiting.pop()
            trial = Trial(mutation, folders.pop())
            running[trial.process] = number, trial
        process, status, usage = os.wait3(0)
        number, trial = running.pop(process)
        folders.append(trial.folder)
        yield number, trial.outcome(status, usage.ru_utime + usage.ru_stime)


def table(rows: list[dict[str, object]]) -> str:
    """Return the result as a page of Markdown."""
    caught = sum(row["outcome"] == "caught" for row in rows)
    lines = [
        "# Bugs that the tests see", "",
        f"{caught} of {len(rows)} bugs are caught. `python -m benchmarks.mutations --output benchmarks/results`", "",
        "| file | right | wrong | outcome | first test that fails |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        old, new = (f"`{' '.join(str(row[key]).split())}`".replace("|", "\\|") for key in ("old", "new"))
        seen = str(row["seen_by"]).rpartition("/")[2].replace("|", "\\|")
        lines.append(f"| {row['file']} | {old} | {new} | {row['outcome']} | {seen} |")
    return "\n".join(lines) + "\n"


def main(args: list[str] | None = None) -> int:
    """Try every bug and return 0 where all are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for mutations.md")
    parser.add_argument("--only", default="", help="part of a file's name")
    parser.add_argument("--jobs", type=int, default=2, help="bugs that are tried at once, each in a copy of the tree")
    given = parser.parse_args(args)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in HOSTS:
        importlib.import_module(name)
    outcomes = {}
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, f"tree{number}") for number in range(given.jobs)]
        for folder in folders:
            copy_of_the_tree(folder)
        chosen = [mutation for mutation in MUTATIONS if given.only in mutation.file]
        for number, row in tried(chosen, folders):
            outcomes[number] = row
            print(
                *(row[key] for key in ("outcome", "file", "seconds", "cpu_seconds")), repr(row["old"]), row["seen_by"]
            )
            sys.stdout.flush()
    rows = [outcomes[number] for number in sorted(outcomes)]
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        (given.output / "mutations.md").write_text(table(rows), encoding="utf-8")
    return int(any(row["outcome"] != "caught" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
