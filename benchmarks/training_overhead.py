"""What ``LanguageModel`` costs a training step beside a bare PyTorch loop over the same model and batches.

    python -m benchmarks.language_overhead --output benchmarks/results

Both train copies of one model on the same batches, step by step in turn, in one process, so that whatever else the
machine does falls on both. The bare loop does what training needs: forward, transformers' own loss, backward,
clipping, AdamW, schedule. ``LanguageModel`` runs in Lightning's ``Trainer`` with its metrics and ``ExactResume``, which
the command line adds.

glibc hands large freed blocks back to the system and asks for them anew, up to 16,000 page faults a step, how many is up
to the process and the thread: 5 to 15 ms that are neither loop's. The benchmark restarts itself with that switched off.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import threading
import time
from pathlib import Path
from statistics import median

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset

from callbacks import ExactResume
from lightning_modules import LanguageModel
from lightning_modules.compare.surroundings import surroundings
from lightning_modules.optim import parameter_groups, warmup_cosine
from structured_init.files import write_json, write_text

#                   clip hidden layers heads block batch vocabulary
CASES = {
    "small":           (None, 64, 2, 2, 32, 4, 512),
    "150 ms":          (None, 192, 4, 4, 128, 8, 4096),
    "150 ms, clipped": (1.0, 192, 4, 4, 128, 8, 4096),
}  # fmt: skip
TURN = 6  # steps
KEEP_MEMORY = {  # of malloc: one arena for both threads, from which nothing is handed back
    "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28),
}  # fmt: skip


class Blocks(Dataset):
    """Fixed blocks, with the text behind every token."""

    def __init__(self, count, block, vocabulary):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(vocabulary, (count, block), generator=generator)
        self.text = torch.full((block,), 3, dtype=torch.int32)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "labels": ids, "characters": self.text, "bytes": self.text}


class Turns:
    """Two threads that work in turn, a few steps each; a step counts only where the one before was of the same thread.

    The first step of a turn finds the other's data in the processor's caches, which is nobody's overhead.
    """

    def __init__(self):
        self.flags = [threading.Semaphore(1), threading.Semaphore(0)]
        self.seconds = [[], []]
        self.done = [0, 0]
        self.begin = [None, None]

    def step(self, who):
        """End a step of ``who``, and after the last of its turn wait for the next turn."""
        now, first = time.perf_counter(), self.begin[who] is None
        place = self.done[who] % TURN
        if not first:
            if place != 0:
                self.seconds[who].append(now - self.begin[who])
            self.done[who] += 1
        if first or place == TURN - 1:
            if not first:
                self.flags[1 - who].release()
            self.flags[who].acquire()
        self.begin[who] = time.perf_counter()

    def leave(self, who):
        """Let the other go on alone."""
        self.flags[1 - who].release()


def build(case):
    """Return a model of the case."""
    _, hidden, layers, heads, block, _, vocabulary = CASES[case]
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    fields |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    return LanguageModel("gpt2", fields, vocab_size=vocabulary, block_size=block)


def bare(network, loader, steps, turns, clip):
    """Train as one would without a framework."""
    optimizer = torch.optim.AdamW(parameter_groups(network), lr=1e-3, weight_decay=0.1)  # as LanguageModel by default
    curve = {"total_steps": steps, "warmup_steps": 0, "warmup_lr": 0.0, "min_lr": 1e-6}
    scheduler = warmup_cosine(optimizer, **curve)
    network.train()
    for batch in loader:
        turns.step(0)
        optimizer.zero_grad()
        network(batch["input_ids"], labels=batch["labels"]).loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        scheduler.step()
    turns.step(0)
    turns.leave(0)


def framed(model, loader, turns, clip, folder):
    """Train in Lightning; a turn is everything from one batch to the next."""

    class InTurn(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                turns.step(1)
                yield batch

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=1, limit_val_batches=0, gradient_clip_val=clip,
        default_root_dir=folder, callbacks=[ExactResume()], **quiet,
    )  # fmt: skip
    trainer.fit(model, InTurn(loader.dataset, batch_size=loader.batch_size))
    turns.leave(1)  # a loader of known length is not asked for what is behind its last batch


def keep_memory():
    """Start this program anew with malloc set up as in :data:`KEEP_MEMORY`, unless it is."""
    if KEEP_MEMORY.items() - os.environ.items():
        command = [sys.executable, "-m", "benchmarks.language_overhead", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | KEEP_MEMORY)


def measure(case, steps):
    """Return the medians of both, in milliseconds, and of what one step of the framework takes more."""
    clip, *_, block, batch, vocabulary = CASES[case]
    loader = DataLoader(Blocks(steps * batch, block, vocabulary), batch_size=batch)
    model, turns = build(case), Turns()
    network = copy.deepcopy(model.network)
    thread = threading.Thread(target=bare, args=(network, loader, steps, turns, clip))
    thread.start()
    framed(model, loader, turns, clip, os.devnull)
    thread.join()
    pairs = zip(network.parameters(), model.network.parameters(), strict=True)
    apart = max((theirs - ours).abs().max().item() for theirs, ours in pairs)
    ours, theirs = (seconds[5:] for seconds in (turns.seconds[1], turns.seconds[0]))
    extra = median(a - b for a, b in zip(ours, theirs, strict=False))  # the last step of ours is not timed
    bare_ms, ours_ms = 1e3 * median(theirs), 1e3 * median(ours)
    return {
        "case": case, "steps": len(ours), "bare_ms": bare_ms, "language_model_ms": ours_ms, "extra_ms": 1e3 * extra,
        "share_of_throughput": bare_ms / (bare_ms + 1e3 * extra), "largest_difference_of_weights": apart,
    }  # fmt: skip


def table(results, about):
    """Return the results in Markdown."""
    lines = [
        "# What `LanguageModel` costs a step",
        "",
        "A bare PyTorch loop and `LanguageModel` in Lightning train copies of one GPT-2 on the same batches, step by",
        "step in turn in one process (`python -m benchmarks.language_overhead`). Medians; the extra time is the median",
        "of paired differences. Wanted: under 3 ms a step, and at least 0.98 of the throughput where a step takes",
        "150 ms or more. Weights apart: the largest difference between both networks in the end.",
        "",
        "malloc keeps what is freed (`MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0`, ...): else either loop loses 5 to 15 ms a",
        "step to up to 16,000 page faults, by chance of process and thread, and the shares vary between 0.93 and 1.",
        "",
        "| case | steps | bare loop, ms | `LanguageModel`, ms | extra, ms | share of throughput | weights apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results:
        lines.append(
            f"| {row['case']} | {row['steps']} | {row['bare_ms']:.1f} | {row['language_model_ms']:.1f} | "
            f"{row['extra_ms']:.2f} | {row['share_of_throughput']:.3f} | {row['largest_difference_of_weights']:.0e} |"
        )
    return "\n".join([*lines, "", about, ""])


def main():
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    results = [measure(case, options.steps if case == "small" else options.steps // 2) for case in CASES]
    record = {"results": results, "load at the start": round(load, 1), "surroundings": surroundings()}
    about = ", ".join(f"{name} {value}" for name, value in record["surroundings"].items())
    text = table(results, f"{os.cpu_count()} cores, 1 thread, load {load:.1f} at the start; {about}.")
    write_text(options.output / "language_overhead.md", text)
    write_json(options.output / "language_overhead.json", record)
    print(text)


if __name__ == "__main__":
    main()
