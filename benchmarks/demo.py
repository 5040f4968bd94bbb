"""The demo: a small ViT on real digits from several starts; a table, learning curves, attention before and after.

python -m benchmarks.demo --output demo
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.demo_figure import demo_figure
from benchmarks.paired_runs import Run, final_accuracy, paired_runs, surroundings, train
from callbacks.figures import save_figure
from structured_init.analysis.paired import paired_table
from structured_init.errors import StructuredInitError
from structured_init.files import replacing

STARTS = ("default", "sincos", "mimetic_host")
QUIET = [
    *("--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"),
    *("--attention.figures", "false"),
]


def main() -> None:
    """Train what is missing two runs at a time, then write the table and the picture."""
    arguments = parse()
    console, begin = Console(), time.perf_counter()
    runs = paired_runs(arguments.output / "runs", STARTS, range(arguments.seeds))
    console.print(
        f"Training a small ViT on 1,293 real 8×8 digits: {len(STARTS)} starts × {arguments.seeds} seeds, "
        f"{arguments.epochs} epochs each. The runs of a seed differ in their start and in nothing else."
    )
    train_all(runs, ["--trainer.max_epochs", str(arguments.epochs), *QUIET], arguments.output, console)
    accuracy = final_accuracy(runs)
    table = paired_table(accuracy, baseline="default", control="sincos")
    console.print(Markdown(table))
    versions = ", ".join(f"{name} {value}" for name, value in surroundings().items())
    with replacing(arguments.output / "table.md") as temporary:
        temporary.write_text(f"{table}\n\nTest accuracy after the last epoch; ± is a 95 % t interval. {versions}.\n")
    save_figure(demo_figure(runs, accuracy), arguments.output / "demo.png")
    console.print(f"Done in {time.perf_counter() - begin:.0f} s. Open:")
    console.print(f"  {arguments.output / 'demo.png'}   learning curves, attention before and after")
    console.print(f"  {arguments.output / 'table.md'}   the table, to paste")
    console.print(f"  {runs[-1].folder}/   one run: report of the start, attention maps, metrics, checkpoint")


def train_all(runs: Sequence[Run], extra: list[str], output: Path, console: Console) -> None:
    """Train the runs in two processes of one thread each; their output goes to one log file per run."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool, Progress(*columns, console=console) as progress:
        task = progress.add_task("runs", total=len(runs))
        futures: dict[Future, Run] = {pool.submit(train_quietly, run, extra, output): run for run in runs}
        for future in as_completed(futures):
            run = futures[future]
            future.result()
            value = final_accuracy([run])[run.start][run.seed]
            progress.console.print(f"  {run.start:<13} seed {run.seed}   test accuracy {value:.1f} %")
            progress.advance(task)


def train_quietly(run: Run, extra: list[str], output: Path) -> None:
    """Train one run on one thread, with everything it prints in a file."""
    torch.set_num_threads(1)
    for library in ("lightning.pytorch", "lightning.fabric"):  # they hold on to the stderr of when they were imported
        logging.getLogger(library).setLevel(logging.WARNING)
    log = output / "logs" / f"{run.start}_{run.seed}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        warnings.simplefilter("ignore")
        train(run, "vit_digits", extra)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"demo: {error}") from None
