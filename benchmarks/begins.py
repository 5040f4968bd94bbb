"""Do the models of other libraries begin as they should?

    python -m benchmarks.begins --output benchmarks/results --resume
    python -m benchmarks.begins --libraries timm --only swin   # a look at a few

The models of the conformance table with their libraries' own scales, each checked by ``structured_init.testing`` in a
process of its own. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.conformance import in_a_fork
from benchmarks.conformance_models import LIBRARIES, Build, installed_versions, transformers_with_heads
from structured_init.testing import check_initialized

MODELS: dict[str, Callable[[], dict[str, Build]]] = {**LIBRARIES, "transformers": transformers_with_heads}


LARGE = 25e6  # parameters from which on a model is left out
TIME_LIMIT = 90  # seconds for one model


def row_of(build: Build) -> dict[str, object]:
    """Check a model and return what fails, a list of lines per check, and which checks were left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.suppress(Exception), torch.device("meta"):
                size = sum(parameter.numel() for parameter in build()[0].parameters())
                if size > LARGE:
                    return {"unbuilt": f"{size / 1e6:.0f} million parameters"}
            model, batch = build()
        except Exception as error:
            return {"unbuilt": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:120]}
        place = f"{type(model).__module__}.{type(model).__name__}"
        del model

        def fresh() -> nn.Module:
            return build()[0]

        checked = check_initialized(fresh, batch)
    return {
        "class": place,
        "failures": {each.name: [line[:240] for line in each.failures] for each in checked.checks if each.failures},
        "left out": {each.name: each.left_out[:80] for each in checked.checks if each.left_out},
    }


def main(args: list[str] | None = None) -> int:
    """Check the models and return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for begins.json and begins.md")
    parser.add_argument("--libraries", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of models' names")
    parser.add_argument("--resume", action="store_true", help="leave out models that the output has rows of")
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    versions = installed_versions()
    path = None if given.output is None else given.output / "begins.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["models"] if path and path.exists() else {}
    for library in given.libraries:
        if library not in versions:
            print(f"{library} is not installed and left out", file=sys.stderr)
            continue
        models = MODELS[library]()
        row_of(models.get("bert", next(iter(models.values()))))  # imports once what every fork needs
        for name, build in models.items():
            key = f"{library}/{name}"
            if (given.resume and key in rows) or not any(part in name for part in given.only):
                continue
            rows[key] = in_a_fork(lambda build=build: row_of(build), TIME_LIMIT)
            print(key, json.dumps(rows[key]), flush=True)
            if path:
                write(path, {"versions": versions, "models": rows})
    return 0


def write(path: Path, result: dict) -> None:
    """Write the numbers, a line a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(result["models"].items()))
    text = f'{{"versions": {json.dumps(result["versions"])}, "models": {{\n{lines}\n}}}}\n'
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
