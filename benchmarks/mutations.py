"""Does the test suite see bugs? Put each bug of ``mutation_list.py`` into a copy of the tree and run the tests for it.

    python -m benchmarks.mutations --output benchmarks/results

The libraries are imported once; each bug is tried in a process forked from that one, which imports this project's
files with the bug in them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.mutation_list import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
HOSTS = (
    *("torch", "torchvision", "timm", "transformers", "lightning.pytorch", "torchmetrics", "datasets", "jsonargparse"),
    *("pandas", "scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "torch._subclasses.fake_tensor"),
)
CAUGHT, MISSED = 1, 0  # pytest's exit codes: some test failed, all passed
TIME_LIMIT = 300  # seconds for one bug; a bug may also make a loop endless


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
        code = int(pytest.main([*quiet, *tests]))
    sys.stdout.flush()
    os._exit(code)


def tried(folder: Path, mutation: Mutation, log: Path) -> dict[str, object]:
    """Put the bug in, run its tests, and take it out again."""
    path = folder / mutation.file
    right = path.read_text(encoding="utf-8")
    if right.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.file} holds {mutation.old!r} {right.count(mutation.old)} times: it must stand there once"
        )
    tests = [f"tests/{name}" for name in mutation.tests.split()]
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    path.write_text(right.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        child = os.fork()
        if child == 0:
            run_tests(folder, tests, log)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        path.write_text(right, encoding="utf-8")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    failed = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    outcome = {CAUGHT: "caught", MISSED: "missed", -signal.SIGALRM: "caught"}.get(code, f"pytest ended with {code}")
    seen_by = failed[0].partition(" ")[2].partition(" - ")[0] if failed else ""
    return {
        **mutation._asdict(), "outcome": outcome, "seen_by": seen_by, "cpu_seconds": round(cpu, 1),
        "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


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
    parser.add_argument("--output", type=Path, help="folder for mutations.json and mutations.md")
    parser.add_argument("--only", default="", help="part of a file's name")
    given = parser.parse_args(args)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in HOSTS:
        importlib.import_module(name)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "tree")
        copy_of_the_tree(folder)
        for mutation in MUTATIONS:
            if given.only in mutation.file:
                rows.append(tried(folder, mutation, Path(name, "log")))
                print(rows[-1]["outcome"], mutation.file, repr(mutation.old), rows[-1]["seen_by"], flush=True)
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        (given.output / "mutations.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (given.output / "mutations.md").write_text(table(rows), encoding="utf-8")
    return int(any(row["outcome"] != "caught" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
