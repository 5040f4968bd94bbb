"""Does ``assert_initialized`` catch the bugs people make, and leave healthy models alone?

    python -m benchmarks.mutants --output benchmarks/results --resume
    python -m benchmarks.mutants --output build/look --only "norms are zero"   # a look at one kind

Each bug of ``mutant_list`` is put into three models of ``mutant_models``, each in a process of its own. It is
caught if a failure is told that the healthy model does not have; its parameter is named if one of these lines has it.
``healthy_models`` are checked as they are. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import io
import json
import re
import sys
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.conformance import in_a_fork
from benchmarks.conformance_models import Build
from benchmarks.healthy_models import healthy_models
from benchmarks.mutant_list import MUTANTS, Mutant, own_method
from benchmarks.mutant_models import mutant_models
from structured_init.analysis import audit
from structured_init.testing import assert_initialized, check_initialized
from structured_init.util.errors import StructuredInitError

TIME_LIMIT = 120  # seconds for one model
OPTIONS = {"own/lora": {"frozen": ("*.base.*",)}}  # what the author of a model says of it
KNOWN = inspect.signature(check_initialized).parameters.keys()
Row = dict[str, object]


def buggy(build: Callable[[], nn.Module], mutant: Mutant) -> nn.Module:
    """Build a model with a bug, which its own method of initialization makes again."""
    if mutant.before is not None:
        mutant.before()
    model = build()
    mutant.change(model)
    name = own_method(model)
    if name and mutant.group not in ("meta device", "seeds and ranks", "frozen or unused"):
        method = getattr(model, name)

        def again() -> None:
            method()
            mutant.change(model)

        setattr(model, name, again)
    return model


def failures(
    build: Callable[[], nn.Module], batch: object, snapshot: Path | None, name: str, seed: int = 0
) -> list[str]:
    """Return the lines of ``assert_initialized``, each ``check: what``; none where a model passes."""
    options: Row = {name: value for name, value in OPTIONS.get(name, {}).items() if name in KNOWN}
    if snapshot is not None and "snapshot" in KNOWN:
        options["snapshot"] = snapshot
    try:
        with quiet():
            assert_initialized(build, batch, seed=seed, **options)
    except AssertionError as error:
        return [line.strip() for line in str(error).splitlines()[1:] if re.match(r"\s*\w+: ", line)]
    except StructuredInitError as error:  # the model does not run, as with two dtypes: the test fails too
        return [f"error: {error}"]
    return []


def problems(build: Callable[[], nn.Module], batch: object) -> list[str]:
    """Return what the audit calls a problem, with memory that nobody writes filled with NaN."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with quiet():
            return [str(each) for each in audit(build(), batch).findings]
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def quiet():
    """Keep what models print and warn of to themselves."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def folded(text: str) -> str:
    """Return a text with every number as #, so that equal parts of blocks are alike."""
    return re.sub(r"\d+", "#", text)


def tell(lines: list[str], healthy: list[str]) -> list[str]:
    """Return the lines that a healthy model does not have."""
    return [line for line in lines if folded(line) not in {folded(each) for each in healthy}]


def says(line: str, names: list[str]) -> bool:
    """Tell whether a line has one of some names, or that of the same part of another block."""
    return any(re.search(rf"(?<![\w.]){re.escape(folded(name))}(?![\w])", folded(line)) for name in names)


def healthy_row(name: str, build: Build, snapshot: Path) -> Row:
    """Return what is told of a healthy model: by the test, by the audit, and by its snapshot under another seed."""
    batch = build()[1]
    fresh = partial(first, build)
    lines = failures(fresh, batch, snapshot, name)
    again = [line for line in failures(fresh, batch, snapshot, name, seed=7) if line.startswith("snapshot")]
    audited = problems(fresh, batch)
    return {"lines": lines, "again": again, "audit": audited}


def first(build: Build) -> nn.Module:
    """Return the model without its batch."""
    return build()[0]


def row_of(mutant: Mutant, name: str, build: Build, healthy: Row, snapshot: Path) -> Row:
    """Return what is told of a mutant and not of the healthy model."""
    model, batch = build()
    every = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    with quiet():
        names = list(mutant.change(model))
    broken = partial(buggy, partial(first, build), mutant)
    lines = tell(failures(broken, batch, snapshot, name), healthy["lines"])
    row: Row = {"lines": lines, "names": names[:3]}
    try:
        row["audit"] = tell(problems(broken, batch), healthy["audit"])
    except Exception as error:  # an error that says what is wrong is no finding
        row["audit"] = []
        row["audit failed"] = str(error)[:120]
    told = [*lines, *row["audit"]]
    row["named"] = any(says(line, names) for line in told)
    row["false"] = [line for line in told if says(line, every) and not says(line, names)]
    return row


def default(row: Row) -> bool:
    """Tell whether a mutant is caught without a snapshot."""
    return any(not line.startswith("snapshot") for line in row.get("lines", ()))


COLUMNS: dict[str, Callable[[Row], bool]] = {
    "by default": default,
    "with snapshot": lambda row: bool(row.get("lines")),
    "by audit": lambda row: bool(row.get("audit")),
    "parameter named": lambda row: bool(row.get("named")),
    "false lines": lambda row: bool(row.get("false")),
}


def chosen(mutant: Mutant, models: dict[str, nn.Module], count: int) -> list[str]:
    """Return the models that a kind is put into: the first that have what it breaks, from a place of its own on."""
    names = list(models)
    begin = zlib.crc32(mutant.name.encode()) % len(names)
    found: list[str] = []
    for name in names[begin:] + names[:begin]:
        with quiet():
            fits = len(found) < count and list(mutant.change(copy.deepcopy(models[name])))
        found += [name] if fits else []
    return found


def measure_mutants(rows: dict[str, Row], only: str, count: int, save: Callable[[], None]) -> None:
    """Fill ``rows``, by ``kind | model``; healthy models are rows of the kind ``healthy``."""
    builds = mutant_models()
    with quiet():
        models = {name: build()[0] for name, build in builds.items()}
    with tempfile.TemporaryDirectory() as folder:
        healthy: dict[str, Row] = {}
        for mutant in MUTANTS:
            if only not in mutant.name:
                continue
            for name in chosen(mutant, models, count):
                key, snapshot = f"{mutant.name} | {name}", Path(folder) / f"{name.replace('/', ' ')}.json"
                if key in rows:
                    continue
                if name not in healthy:
                    healthy[name] = in_a_fork(partial(healthy_row, name, builds[name], snapshot), TIME_LIMIT)
                    rows[f"healthy | {name}"] = healthy[name]
                if "failed" in healthy[name]:
                    raise SystemExit(f"{name}: {healthy[name]['failed']}")
                work = partial(row_of, mutant, name, builds[name], healthy[name], snapshot)
                rows[key] = {"group": mutant.group, "report": mutant.report, **in_a_fork(work, TIME_LIMIT)}
                said = " ".join(column for column, holds in COLUMNS.items() if holds(rows[key])) or "MISSED"
                print(f"{key}: {rows[key].get('failed') or said}", flush=True)
            save()


def measure_healthy(rows: dict[str, Row], only: str, save: Callable[[], None]) -> None:
    """Fill ``rows`` by library and model: lines of failures, or why a model could not be built."""
    for name, build in healthy_models().items():
        if name in rows or only not in name:
            continue
        rows[name] = in_a_fork(partial(checked, name, build), TIME_LIMIT)
        said = rows[name].get("failed") or rows[name].get("unbuilt") or (rows[name]["lines"] or ["ok"])[0]
        print(f"{name}: {said}", flush=True)
        save()


def checked(name: str, build: Build) -> Row:
    """Check a healthy model, once it is known that it can be built and run."""
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
            model, batch = build()
            if isinstance(batch, dict):
                model(**batch)
            elif batch is not None:  # else the host names one, or the model needs a GPU
                model(*batch if isinstance(batch, tuple) else (batch,))
    except Exception as error:
        return {"unbuilt": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:120]}
    begin = time.perf_counter()
    lines = failures(partial(first, build), batch, None, name)
    return {"lines": lines, "seconds": round(time.perf_counter() - begin, 1)}


def table(rows: dict[str, list[Row]], title: str) -> list[str]:
    """Return a table of shares of runs, a line per key."""
    head = [f"| {title} | runs | {' | '.join(COLUMNS)} |", "|---|---|" + "---|" * len(COLUMNS)]
    for key, some in rows.items():
        counts = [sum(map(holds, some)) for holds in COLUMNS.values()]
        head.append(f"| {key} | {len(some)} | {' | '.join(map(str, counts))} |")
    return head


def page(rows: dict[str, dict[str, Row]]) -> str:
    """Return the tables as a page of Markdown."""
    groups, kinds, missed = defaultdict(list), defaultdict(list), defaultdict(list)
    runs = {key: row for key, row in rows["mutants"].items() if "group" in row}
    for key, row in runs.items():
        kind, _, model = key.partition(" | ")
        groups[str(row["group"])].append(row)
        kinds[f"{kind} ({row['report']})" if row["report"] else kind].append(row)
        if not row.get("lines"):
            missed[kind].append(model)
    every = list(runs.values())
    models = {key.partition(" | ")[2] for key in runs}
    own = {key: row for key, row in rows["mutants"].items() if "group" not in row}
    again = {key: row["again"][0] for key, row in own.items() if row.get("again")}
    built = {name: row for name, row in rows["healthy"].items() if "lines" in row}
    failing = {name: row["lines"] for name, row in built.items() if row["lines"]}
    unbuilt = {name: row for name, row in rows["healthy"].items() if "lines" not in row}
    libraries = {name.partition("/")[0] for name in built}
    text = [
        "# Which bugs of initialization are caught?",
        "",
        f"{len(kinds)} kinds of bug were put into {len(models)} small models, {len(every)} runs. *With snapshot*: by",
        "the test, by default or by a snapshot of the healthy model. `python -m benchmarks.mutants --output",
        f"benchmarks/results --models {max(map(len, kinds.values()), default=0)}` makes this page; what the bugs are "
        "stands in `benchmarks/mutant_list.py`.",
        "",
        *table({"all": every, **groups}, "group"),
        "",
        f"{sum(bool(row.get('lines')) for row in own.values())} of the {len(own)} healthy models fail by default; "
        f"{len(again)} differ from their own snapshot under another seed.",
        *(f"- {key.partition(' | ')[2]}: {line}" for key, line in again.items()),
        "",
        "## Healthy models",
        "",
        f"{len(built)} models of {len(libraries)} libraries were checked; {len(failing)} fail. {len(unbuilt)} others",
        "could not be built or run.",
        "",
        "| model | lines | the first |",
        "|---|---|---|",
        *(f"| {name} | {len(lines)} | {shown(lines[0])} |" for name, lines in failing.items()),
        "",
        "## By kind",
        "",
        *table(kinds, "kind"),
        "",
        "## Missed with a snapshot",
        "",
        *(f"- {kind}: {', '.join(some)}" for kind, some in missed.items()),
        "",
        "## Lines that name another parameter than the broken one",
        "",
        *(f"- {key}: {shown(row['false'][0])}" for key, row in runs.items() if row.get("false")),
        "",
        "## Not built",
        "",
        *(f"- {name}: {row.get('unbuilt') or row.get('failed')}" for name, row in unbuilt.items()),
    ]
    return "\n".join(text) + "\n"


def shown(line: str) -> str:
    """Return a line that fits into a table."""
    return line.replace("|", "/")[:150]


def main(args: list[str] | None = None) -> int:
    """Run the mutants and the healthy models, write both files and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for mutants.json and mutants.md")
    parser.add_argument("--only", default="", help="part of a kind's, or a healthy model's, name")
    parser.add_argument("--models", type=int, default=3, help="into how many a kind is put, at most")
    parser.add_argument("--part", choices=("mutants", "healthy", "both"), default="both")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    options = parser.parse_args(args)
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "mutants.json"
    kept = options.resume and file.exists()
    rows = json.loads(file.read_text()) if kept else {"mutants": {}, "healthy": {}}

    def save() -> None:
        file.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        file.with_suffix(".md").write_text(page(rows))

    torch.set_num_threads(1)
    # What torch imports when it is first asked for is then there in every process that is forked.
    problems(lambda: nn.Linear(32, 32), torch.zeros(2, 32))
    failures(lambda: nn.Linear(32, 32), torch.zeros(2, 32), None, "")
    if options.part != "healthy":
        measure_mutants(rows["mutants"], options.only, options.models, save)
    if options.part != "mutants":
        measure_healthy(rows["healthy"], options.only, save)
    save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
