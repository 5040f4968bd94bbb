"""What must a network be told? One property of a trained network's weights at a time, written into a fresh one.

    python -m benchmarks.described teachers --output runs/described
    python -m benchmarks.described sweep digits --output runs/described
    python -m benchmarks.described run digits --output runs/described
    python -m benchmarks.described run digits --shape wide --arms default,position_size --output runs/described
    python -m benchmarks.described page --output runs/described

A run that is in ``results.jsonl`` is not run again. The rule by which it decides stands in docs/described.md. A network
is seen as layers of named matrices (out, in), with what stands before and behind them. Properties of few numbers are a
*description*, a dictionary of lists over the depth (:func:`describe`, :func:`write`), which fits any width and depth:

- ``scale``: of each matrix the root mean square times √in, of each norm the mean weight;
- ``diagonals``: of each layer the mean over heads of the cosine of W_q and W_k, and of W_v and W_oᵀ, which is the
  product's mean diagonal over the largest that matrices of this size can have;
- ``positions``: the mean product of two positions as a function of their distance in rows and columns.

All others need the trained network itself, and a student of its shape.

Letters: D width of the stream, H heads, k head_dim, N tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.described_page import write_page
from lightning_modules.cli.configurations import expand
from lightning_modules.cli.lightning_cli import BuildOnly
from lightning_modules.tasks.optim import build_optimizer, warmup_cosine
from structured_init import initialize
from structured_init.linalg import random_orthogonal

Description = dict[str, list[float]]
MLP = {"fc1": "mlp.fc1", "fc2": "mlp.fc2", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
SWEEP = 100  # seed of the sweep
EVALUATED = {"digits": 359, "characters": 128}  # images, or blocks of 128 characters
ATTENTION = ("query", "key", "value", "output")


class Setting(NamedTuple):
    """An experiment, with what is asked of it."""

    words: list[str]  # of the command line
    short: int  # steps of the short budget
    usual: int  # steps of the experiment's own budget
    teacher: int  # steps that the teacher is trained for
    batch: int
    warmup: float  # share of the steps
    clip: float | None
    rates: tuple[float, ...]  # the middle one is the default's of the usual budget
    shapes: dict[str, dict[str, Any]]
    published: tuple[str, ...]


LLAMA = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 352}
WIDE = {"hidden_size": 192, "intermediate_size": 528, "num_attention_heads": 6, "num_key_value_heads": 3}
SETTINGS = {
    "digits": Setting(
        ["-c", "vit_digits", "-c", "optim/muon"], 100, 800, 2400, 64, 0.05, None, (0.003, 0.01, 0.03),
        {"same": {}, "wide": {"embed_dim": 96, "num_heads": 6}, "deep": {"depth": 6}}, ("sincos",),
    ),
    "characters": Setting(
        ["-c", "llama_modern_short"], 150, 600, 1500, 8, 0.1, 1.0, (0.005, 0.01, 0.02),
        {"same": {}, "wide": WIDE, "deep": {"num_hidden_layers": 6}, "python": {}},
        ("uniform_projections", "previous_token"),
    ),
}  # fmt: skip


# A network as layers of matrices -------------------------------------------------------------------------------------


def layers(model: nn.Module) -> list[dict[str, Tensor]]:
    """Return of each layer its matrices (out, in) and norms, by name: views, so that writing them writes the model."""
    found = []
    for block in model.blocks if hasattr(model, "blocks") else model.model.layers:
        if hasattr(block, "attn"):
            parts = dict(zip(ATTENTION, block.attn.qkv.weight.data.chunk(3), strict=False))
            parts |= {"output": block.attn.proj.weight.data}
            norms = (block.norm1, block.norm2)
        else:
            attention = block.self_attn
            held = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
            parts = {name: each.weight.data for name, each in zip(ATTENTION, held, strict=True)}
            norms = (block.input_layernorm, block.post_attention_layernorm)
        mlp = {name: block.get_submodule(path) for name, path in MLP.items() if hasattr(block.mlp, path[4:])}
        parts |= {name: each.weight.data for name, each in mlp.items()}
        found.append(parts | {"norm attention": norms[0].weight.data, "norm mlp": norms[1].weight.data})
    return found


def ends(model: nn.Module) -> dict[str, Tensor]:
    """Return what stands before and behind the layers, positions left out."""
    if hasattr(model, "blocks"):
        known = {"embedding": model.patch_embed.proj.weight.data.flatten(1), "head": model.head.weight.data}
        return known | {"norm": model.fc_norm.weight.data}
    return {"embedding": model.model.embed_tokens.weight.data, "norm": model.model.norm.weight.data}


def heads(model: nn.Module, layer: dict[str, Tensor]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return W_q, W_k, W_v (k, D) and W_oᵀ (k, D) of every head; heads that share a key have the same."""
    config = getattr(model, "config", None)
    count = model.blocks[0].attn.num_heads if config is None else config.num_attention_heads
    shared = 1 if config is None else count // config.num_key_value_heads
    query, output = layer["query"].chunk(count), layer["output"].mT.chunk(count)
    key, value = layer["key"].chunk(count // shared), layer["value"].chunk(count // shared)
    return [(query[h], key[h // shared], value[h // shared], output[h]) for h in range(count)]


def cosine(one: Tensor, two: Tensor) -> float:
    """Return the cosine of two matrices as vectors: tr(W_qᵀ W_k) / (‖W_q‖ ‖W_k‖)."""
    return F.cosine_similarity(one.flatten().double(), two.flatten().double(), dim=0).item()


def size(matrix: Tensor, name: str) -> float:
    """Return the mean of a norm, and of a matrix its root mean square, times √in where it reads the stream."""
    if matrix.ndim == 1:
        return matrix.mean().item()
    return matrix.square().mean().sqrt().item() * (1.0 if name == "embedding" else matrix.shape[1] ** 0.5)


# Descriptions --------------------------------------------------------------------------------------------------------


def kernel(table: Tensor) -> Tensor:
    """Return the mean product of positions (N, D), over D, at each distance in rows and columns of a square grid."""
    side = math.isqrt(len(table))
    at = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    apart = (at[:, None] - at).abs() @ torch.tensor([side, 1])
    products = (table @ table.T / table.shape[1]).flatten().double()
    sums = torch.zeros(side * side, dtype=torch.float64).index_add_(0, apart.flatten(), products)
    return sums / apart.flatten().bincount(minlength=side * side)


def with_kernel(values: Tensor, dim: int, generator: torch.Generator) -> Tensor:
    """Return positions (N, D) of such products in random directions; of a kernel that none has, the nearest."""
    side = math.isqrt(len(values))
    at = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    products = values[(at[:, None] - at).abs() @ torch.tensor([side, 1])]
    shares, directions = torch.linalg.eigh(products)
    return directions * (shares.clamp(min=0) * dim).sqrt() @ random_orthogonal(len(values), dim, generator=generator)


def describe(model: nn.Module) -> Description:
    """Return the description of a network."""
    inside = layers(model)
    found = {name: [size(layer[name], name) for layer in inside] for name in inside[0]}
    found |= {name: [size(matrix, name)] for name, matrix in ends(model).items()}
    for product, (one, two) in {"query key": (0, 1), "value output": (2, 3)}.items():
        every = [[cosine(head[one], head[two]) for head in heads(model, layer)] for layer in inside]
        found[product] = [sum(each) / len(each) for each in every]
    if hasattr(model, "pos_embed"):
        found["positions"] = kernel(model.pos_embed.data[0]).tolist()
    return found


def write(model: nn.Module, description: Description, generator: torch.Generator, properties: Iterable[str]) -> None:
    """Write some of ``scale``, ``diagonals`` and ``positions`` into a network of any width and depth, in place."""
    inside = layers(model)

    def at(name: str, place: int) -> float:
        values = description[name]
        where = place / max(len(inside) - 1, 1) * (len(values) - 1)
        low = min(int(where), max(len(values) - 2, 0))
        return values[low] + (where - low) * (values[min(low + 1, len(values) - 1)] - values[low])

    if "scale" in properties:
        every = [(name, each, at(name, place)) for place, layer in enumerate(inside) for name, each in layer.items()]
        for name, matrix, wanted in every + [(name, each, description[name][0]) for name, each in ends(model).items()]:
            matrix.fill_(wanted) if matrix.ndim == 1 else matrix.mul_(wanted / size(matrix, name))
    if "diagonals" in properties:
        for place, layer in enumerate(inside):
            for query, key, value, output in heads(model, layer):
                for turned, towards, product in ((query, key, "query key"), (output, value, "value output")):
                    to = towards / towards.norm()
                    rest, wanted = turned - (turned * to).sum() * to, at(product, place)
                    turned.copy_(turned.norm() * (wanted * to + (1 - wanted**2) ** 0.5 * rest / rest.norm()))
    if "positions" in properties and "positions" in description:
        table = model.pos_embed.data[0]
        table.copy_(with_kernel(torch.tensor(description["positions"]).double(), table.shape[1], generator))


def mixed_up(description: Description, generator: torch.Generator, *, one: bool) -> Description:
    """Return sizes of matrices exchanged among all matrices; or with ``one``, their ratios to 0.02 by one number."""
    names = [name for name in description if "norm" not in name and " " not in name and name != "positions"]
    sizes = torch.tensor([value for name in names for value in description[name]])
    order = torch.randperm(len(sizes), generator=generator)
    sizes = sizes.log().mean().exp().expand(len(sizes)) if one else sizes[order]
    parts = sizes.split([len(description[name]) for name in names])
    return description | {name: part.tolist() for name, part in zip(names, parts, strict=True)}


# Properties that need the trained network ----------------------------------------------------------------------------


def matched(student: nn.Module, teacher: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the matrices and norms of both, beside each other."""
    pairs = [(ends(student), ends(teacher)), *zip(layers(student), layers(teacher), strict=True)]
    return [(own[name], its[name]) for own, its in pairs for name in own]


def spectrum(student: nn.Module, teacher: nn.Module, generator: torch.Generator) -> None:
    """The teacher's singular values between the student's directions: the teacher without any alignment."""
    for own, its in matched(student, teacher):
        if own.ndim == 1:
            own.fill_(its.mean())
        else:
            left, _, right = torch.linalg.svd(own, full_matrices=False)
            own.copy_(left * torch.linalg.svdvals(its) @ right)


def covariance(student: nn.Module, teacher: nn.Module, generator: torch.Generator) -> None:
    """Normal matrices with the teacher's covariance over inputs and over outputs, and its size."""
    for own, its in matched(student, teacher):
        if own.ndim == 1:
            own.fill_(its.mean())
        else:
            rows, columns = (_root(its @ its.T), _root(its.T @ its))
            drawn = rows @ torch.randn(its.shape, generator=generator) @ columns
            own.copy_(drawn * its.norm() / drawn.norm())


def _root(symmetric: Tensor) -> Tensor:
    values, directions = torch.linalg.eigh(symmetric)
    return directions * values.clamp(min=0).sqrt() @ directions.T


def copied(student: nn.Module, teacher: nn.Module, generator: torch.Generator, *, only: Callable[[str], bool]) -> None:
    """The teacher's own parameters of some names."""
    theirs = teacher.state_dict()
    student.load_state_dict({name: theirs[name] for name in theirs if only(name)}, strict=False)


def some_matrices(student: nn.Module, teacher: nn.Module, generator: torch.Generator, *, names: set[str]) -> None:
    """The teacher's own matrices and norms of some names, in all layers."""
    for own, its in zip(layers(student), layers(teacher), strict=True):
        for name in names & own.keys():
            own[name].copy_(its[name])


def unaligned(student: nn.Module, teacher: nn.Module, generator: torch.Generator) -> None:
    """The teacher, with the stream turned at random in each part of a layer: all that is inside of a part is kept."""
    student.load_state_dict(teacher.state_dict())
    for block in student.blocks if hasattr(student, "blocks") else student.model.layers:
        if hasattr(block, "attn"):
            turn_part(block.norm1, [block.attn.qkv], block.attn.proj, generator)
            turn_part(block.norm2, [block.mlp.fc1], block.mlp.fc2, generator)
        else:
            own, mlp = block.self_attn, block.mlp
            turn_part(block.input_layernorm, [own.q_proj, own.k_proj, own.v_proj], own.o_proj, generator)
            turn_part(block.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj], mlp.down_proj, generator)


def turn_part(norm: nn.Module, first: list[nn.Linear], last: nn.Linear, generator: torch.Generator) -> None:
    """Let a part read and write the stream turned by a random rotation, one that LayerNorm does not notice."""
    dim = len(norm.weight)
    basis, _ = torch.linalg.qr(torch.cat([torch.ones(dim, 1), torch.randn(dim, dim - 1, generator=generator)], dim=1))
    inside = random_orthogonal(dim - 1, dim - 1, generator=generator).float()
    turn = basis @ torch.block_diag(torch.ones(1, 1), inside) @ basis.T
    for linear in first:
        if linear.bias is not None:
            linear.bias.data += linear.weight.data @ norm.bias.data
        linear.weight.data.copy_(linear.weight.data * norm.weight.data @ turn.T)
    norm.weight.data.fill_(1.0)
    for linear in (norm, last):
        if getattr(linear, "bias", None) is not None:
            linear.bias.data.copy_(torch.zeros(dim) if linear is norm else turn @ linear.bias.data)
    last.weight.data.copy_(turn @ last.weight.data)


def position_size(student: nn.Module, teacher: nn.Module, generator: torch.Generator) -> None:
    """The student's own positions, of the teacher's root mean square: one number."""
    own, its = student.pos_embed.data, teacher.pos_embed.data
    own.mul_(its.square().mean().sqrt() / own.square().mean().sqrt())


Write = Callable[[nn.Module, nn.Module, torch.Generator], None]


def small(properties: tuple[str, ...], change: Callable[..., Description] | None = None) -> Write:
    """Return the arm that writes some properties of the teacher's description, changed or as it is."""

    def arm(student: nn.Module, teacher: nn.Module, generator: torch.Generator) -> None:
        description = describe(teacher)
        write(student, change(description, generator) if change else description, generator, properties)

    return arm


ALL = ("scale", "diagonals", "positions")
ARMS: dict[str, Write | None] = {
    "default": None,
    "scale": small(("scale",)),
    "diagonals": small(("diagonals",)),
    "positions": small(("positions",)),
    "position_size": position_size,
    "description": small(ALL),
    "one_scale": small(("scale",), partial(mixed_up, one=True)),
    "scale_exchanged": small(("scale",), partial(mixed_up, one=False)),
    "untrained": small(ALL),  # of another untrained network
    "spectrum": spectrum,
    "covariance": covariance,
    "positions_copied": partial(copied, only=lambda name: name == "pos_embed"),
    "query_key": partial(some_matrices, names={"query", "key", "norm attention"}),
    "value_output": partial(some_matrices, names={"value", "output", "norm attention"}),
    "attention": partial(copied, only=lambda name: "att" in name or ".norm1." in name or "input_layernorm" in name),
    "mlp": partial(copied, only=lambda name: ".mlp." in name or ".norm2." in name or "post_attention" in name),
    "ends": partial(copied, only=lambda name: "blocks." not in name and "layers." not in name),
    "unaligned": unaligned,
    "full": partial(copied, only=lambda name: True),
}


# Training ------------------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """All samples of three splits, as the network takes them."""

    task: Any  # builds networks and the optimizer
    network_args: dict[str, Any]  # as the experiment has them
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@cache
def opened(name: str, shape: str) -> Data:
    """Read the data of a setting; its shape ``python`` has other text."""
    words = [*SETTINGS[name].words, *(["-c", "data/python_docs"] if shape == "python" else [])]
    sizes = ["--data.init_args.block_size", "128"] if name == "characters" else []
    cli = BuildOnly(expand(["fit", *words, *sizes, "--trainer.logger", "false"]))
    cli.datamodule.prepare_data()
    for stage in ("fit", "test"):
        cli.datamodule.setup(stage)
    splits = []
    for split in ("train_set", "val_set", "test_set"):
        samples = getattr(cli.datamodule, split)
        batch = samples.__getitems__(list(range(len(samples))))
        known = (batch["input_ids"], batch["labels"]) if isinstance(batch, dict) else batch
        splits.append(tuple(each if split == "train_set" else each[: EVALUATED[name]] for each in known))
    return Data(cli.model, cli.model.network_args, *splits)


def network(name: str, shape: str, seed: int) -> nn.Module:
    """Build a fresh network from a seed."""
    task, given = opened(name, shape)[:2]
    task.network_args = {**given, **SETTINGS[name].shapes[shape]}
    torch.manual_seed(seed)
    return task.named_network(task.hparams.network)


def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy in nats, and the share that is right."""
    found = model(inputs)
    if hasattr(found, "logits"):
        logits, labels = found.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        logits, labels = logits[labels >= 0], labels[labels >= 0]
    else:
        logits = found
    return F.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()


def evaluate(model: nn.Module, split: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return both over a split."""
    model.eval()
    with torch.no_grad():
        parts = [(len(x), *loss(model, x, y)) for x, y in zip(*(each.split(64) for each in split), strict=True)]
    model.train()
    count = sum(each[0] for each in parts)
    return sum(n * a.item() for n, a, _ in parts) / count, sum(n * b.item() for n, _, b in parts) / count


def train(name: str, shape: str, model: nn.Module, *, seed: int, steps: int, rate: float) -> None:
    """Train as the experiment does: its optimizer, warm-up and cosine."""
    setting, data = SETTINGS[name], opened(name, shape)
    model.train()
    optimizer = build_optimizer(partial(data.task.optimizer, lr=rate), model)
    schedule = warmup_cosine(
        optimizer, total_steps=steps, warmup_steps=round(setting.warmup * steps), warmup_lr=1e-5, min_lr=1e-6
    )
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < setting.batch:
            order = torch.randperm(len(data.train[0]), generator=generator)
        taken, order = order[: setting.batch], order[setting.batch :]
        objective, _ = loss(model, data.train[0][taken], data.train[1][taken])
        optimizer.zero_grad()
        objective.backward()
        if setting.clip:
            nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        optimizer.step()
        schedule.step()


def run(name: str, arm: str, *, shape: str, seed: int, steps: int, rate: float, place: Path) -> None:
    """Do one run, unless it is there, and append its line."""
    key = {"setting": name, "shape": shape, "arm": arm, "seed": seed, "steps": steps, "rate": rate}
    file = place / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if any(key.items() <= line.items() for line in lines):
        return
    begin, model = time.process_time(), network(name, shape, seed)
    if arm in SETTINGS[name].published:
        initialize(model, arm, seed=seed, progress=False)
    elif (change := ARMS[arm]) is not None:
        teacher = network(name, "same", 1000)
        if arm != "untrained":
            teacher.load_state_dict(torch.load(place / f"{name}.pt"))
        with torch.no_grad():
            change(model, teacher, torch.Generator().manual_seed(seed))
    train(name, shape, model, seed=seed, steps=steps, rate=rate)
    data = opened(name, shape)
    (val, _), (test, right) = evaluate(model, data.val), evaluate(model, data.test)
    ended = {"val": val, "loss": test, "accuracy": right, "seconds": time.process_time() - begin}
    with file.open("a") as out:
        out.write(json.dumps(key | ended) + "\n")
    print(f"{name} {shape} {arm} {seed} {steps} {rate}: {test:.3f} {right:.3f} ({ended['seconds']:.0f} s)", flush=True)


def counts(file: Path) -> dict[str, int]:
    """Return how many numbers each description of a teacher has."""
    told = {name: len(values) for name, values in json.loads(file.read_text()).items()}
    positions, diagonals = told.pop("positions", 0), told.pop("query key") + told.pop("value output")
    scale = sum(told.values())
    every, norms = scale + diagonals + positions, sum(count for name, count in told.items() if "norm" in name)
    found = {"scale": scale, "diagonals": diagonals, "positions": positions, "description": every}
    return found | {"scale_exchanged": scale, "untrained": every, "position_size": 1, "one_scale": 1 + norms}


def chosen(name: str, arm: str, place: Path) -> float:
    """Return the learning rate of an arm: the best at the sweep's seed, or the default's where it was not swept."""
    lines = [json.loads(line) for line in (place / "results.jsonl").read_text().splitlines()]
    swept = [line for line in lines if (line["setting"], line["seed"]) == (name, SWEEP)]
    own = [line for line in swept if line["arm"] == arm] or [line for line in swept if line["arm"] == "default"]
    return min(own, key=lambda line: (line["val"], line["rate"]))["rate"]


def teach(name: str, place: Path) -> None:
    """Train the teacher, of seed 0, long."""
    if not (place / f"{name}.pt").exists():
        model, setting = network(name, "same", 0), SETTINGS[name]
        train(name, "same", model, seed=0, steps=setting.teacher, rate=setting.rates[1])
        print(name, "test loss and accuracy", evaluate(model, opened(name, "same").test), flush=True)
        torch.save(model.state_dict(), place / f"{name}.pt")
        (place / f"{name}.json").write_text(json.dumps(describe(model)))


def main(arguments: list[str] | None = None) -> None:
    """Train, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("teachers", "sweep", "run", "page"))
    parser.add_argument("setting", nargs="?", choices=SETTINGS)
    parser.add_argument("--arms", help="default: all that fit the shape")
    parser.add_argument("--shape", default="same")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20, 25)))
    parser.add_argument("--rates", type=float, nargs="+", help="of the sweep")
    parser.add_argument("--usual", action="store_true", help="the experiment's own budget in place of the short one")
    parser.add_argument("--output", type=Path, default=Path("runs/described"))
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if options.what == "page":
        files = {name: options.output / f"{name}.json" for name in SETTINGS}  # of the teachers that there are
        numbers = {name: counts(file) for name, file in files.items() if file.exists()}
        return write_page(options.output / "results.jsonl", numbers)
    if options.what == "teachers":
        return [teach(name, options.output) for name in SETTINGS if options.setting in (None, name)] and None
    name, setting = options.setting, SETTINGS[options.setting]
    every = [*ARMS, *setting.published]
    if name == "characters":
        every = [arm for arm in every if "position" not in arm]
    one = partial(run, name, shape=options.shape, place=options.output)
    arms = options.arms.split(",") if options.arms else every
    if options.what == "sweep":
        for arm, rate in ((arm, rate) for arm in arms for rate in options.rates or setting.rates):
            one(arm, seed=SWEEP, steps=setting.short, rate=rate)
    for seed in options.seeds if options.what == "run" else ():  # all arms of a seed, then the next
        for arm in arms:
            rate = setting.rates[1] if options.usual else chosen(name, arm, options.output)
            one(arm, seed=seed, steps=setting.usual if options.usual else setting.short, rate=rate)
    return None


if __name__ == "__main__":
    main()
