"""Train the published settings on one device, several runs at once, in folders that ``report`` reads.

    python -m benchmarks.published --minutes 9
    structured-init report runs/published/vit

A study is a comparison like any other: what ``structured-init compare`` would train of the same words, with its
networks, initializations, optimizers, schedules and orders of images. Here the images stay on the device as uint8 and
are changed there, and several networks take one step together. Runs that the time has stopped go on from where they
were when the command is given again. ``--study small`` is a tenth of the size, for a CPU.

Networks that step together have no dropout and no drop path. What bounds their number is memory, and where one of them
fills the device, company gains nothing. Optimizers step one network after another, which takes long under Muon.
"""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.device_images import Images
from callbacks.init import REPORT_FILE, InitCallback
from comparison.command.options import compare_parser
from comparison.plan.comparison import Comparison
from comparison.plan.prepare import prepare
from comparison.runs.folder import Point, Run
from comparison.train.run import environment
from comparison.train.run_log import RunLog
from lightning_modules.cli.configurations import expand
from lightning_modules.cli.lightning_cli import SETTINGS, BuildOnly
from lightning_modules.data.seeded import EpochSampler
from lightning_modules.tasks.image import ImageClassifier
from lightning_modules.tasks.optim import build_optimizer, piecewise_linear, warmup_cosine
from structured_init import freeze, initialize
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import replacing, write_json

STUDIES = {  # what ``compare`` would be given, in the order in which they are trained
    "vit": "-c vit_cifar10 -c trainer/gpu --inits default,sincos,mimetic,impulse --seeds 0-2 --trainer.max_epochs 100"
    " --model.init_args.network vit_tiny_patch4_32",
    "convmixer": "-c convmixer_cifar10 -c trainer/gpu --inits default,covariance --seeds 0-2",
    "small": "-c vit_cifar10_short --inits default,sincos,mimetic,impulse --seeds 0,1 --trainer.max_epochs 2"
    " --data.init_args.flip true --data.init_args.rand_augment rand-m9-mstd0.5-inc1",
}
TOGETHER = {"vit": 4, "convmixer": 2, "small": 4}  # networks that step together: all arms of a seed
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # operations a second in bfloat16, by the data sheets
STATE = "published.pt"  # in the folder of a run that is not complete
SAVE_AFTER = 60.0  # seconds of training that a kill may cost
LEFT = 75  # exit code while runs are left, as of ``compare --time-limit``
Losses = Callable[[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor], Tensor]


class Member:
    """A run among those that are trained together: its initialized model, its optimizer and its schedule."""

    def __init__(self, run: Run, cli: BuildOnly, images: Images) -> None:
        trainer, model = cli.trainer, cli.model
        if trainer.limit_train_batches != 1.0 or trainer.accumulate_grad_batches != 1 or model.mixup or model.cutmix:
            raise StructuredInitError("whole epochs of unmixed images are trained here, a step for each batch")
        self.run, self.seed, self.model, self.clip = run, cli.datamodule.seed, model, trainer.gradient_clip_val
        self.step, self.seconds, self.log = 0, 0.0, RunLog(str(run.folder))
        (callback,) = [each for each in trainer.callbacks if isinstance(each, InitCallback)]
        begin = time.perf_counter()
        freeze(model, callback.initializer)
        report = initialize(model, callback.initializer, seed=run.seed, strict=callback.strict)
        self.initialization_seconds = time.perf_counter() - begin
        run.write_settings()
        write_json(run.folder / REPORT_FILE, report.to_dict())
        cli.parser.save(cli.config, run.folder / SETTINGS, skip_none=False, overwrite=True, multifile=False)
        model.to(images.mean.device).train()
        self.optimizer = build_optimizer(model.optimizer, model, decay_all=model.decay_all)
        self.per_epoch = len(images.parts["train"][1]) // images.batch_size
        limits = (trainer.max_steps, self.per_epoch * (trainer.max_epochs or 0))
        self.total = min(limit for limit in limits if limit > 0)
        epochs = trainer.check_val_every_n_epoch
        self.every = self.per_epoch * epochs if epochs else trainer.val_check_interval  # steps between validations
        self.schedule = self._schedule()

    def _schedule(self) -> LRScheduler:
        model = self.model
        if model.lr_schedule is not None:
            return piecewise_linear(self.optimizer, total_steps=self.total, points=model.lr_schedule)
        warmup = round(model.warmup_epochs * self.per_epoch)
        ends = {"warmup_lr": model.warmup_lr, "min_lr": model.min_lr}
        return warmup_cosine(self.optimizer, total_steps=self.total, warmup_steps=warmup, **ends)

    def update(self) -> None:
        """Take a step along the gradients."""
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1

    def save(self) -> None:
        """Keep what the run goes on from; its weights are parts of larger tensors, so they are copied."""
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        state = {"model": weights, "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}
        with replacing(self.run.folder / STATE) as file:
            torch.save({**state, "step": self.step, "seconds": self.seconds}, file)

    def load(self) -> None:
        """Go on from what was kept, if anything was."""
        state = read_state(self.run)
        if state["step"] == 0:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step, self.seconds = state["step"], state["seconds"]


def read_state(run: Run) -> dict[str, Any]:
    """Return what a run goes on from; at its beginning, step 0 alone."""
    file = run.folder / STATE
    return torch.load(file, weights_only=True, map_location="cpu") if file.is_file() else {"step": 0}


def reached(run: Run) -> int:
    """Return the step that a run goes on from."""
    return read_state(run)["step"]


def share(networks: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters and buffers of networks of one shape, each stacked (S, …), of which theirs become views.

    So are the gradients: a step along those of the stack is a step of each network's own optimizer.
    """
    parameters, buffers = {}, {}
    for name, _ in networks[0].named_parameters():
        own = [network.get_parameter(name) for network in networks]
        whole = torch.stack([each.detach() for each in own]).requires_grad_()
        whole.grad = torch.zeros_like(whole)
        for each, values, gradient in zip(own, whole.detach(), whole.grad, strict=True):
            each.data = values
            each.grad = gradient if each.requires_grad else None
        parameters[name] = whole
    for name, _ in networks[0].named_buffers():
        own = [network.get_buffer(name) for network in networks]
        whole = torch.stack(own)
        for each, values in zip(own, whole, strict=True):
            each.data = values
        buffers[name] = whole
    return parameters, buffers


def losses_of(model: ImageClassifier, compiled: bool) -> Losses:
    """Return what gives the losses (S,) of stacked parameters, buffers, images (S, B, C, H, W) and classes (S, B).

    It serves all networks of the model's shape, so that they are compiled once.
    """

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(model.network, (parameters, buffers), (images,))
        return F.cross_entropy(logits, labels, label_smoothing=model.label_smoothing)

    return torch.compile(vmap(loss)) if compiled else vmap(loss)


class Group:
    """Runs at one place of a comparison that are trained together, from one step on."""

    def __init__(self, members: Sequence[Member], images: Images, losses: Losses, precision: str) -> None:
        self.members, self.images, self.first = members, images, members[0]
        self.device = images.mean.device
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
        self.operations = operations(self.first.model.network, images)
        self.parameters, self.buffers = share([member.model.network for member in members])
        for member in members:
            member.load()
        self.seeds = sorted({member.seed for member in members})
        self.which = torch.tensor([self.seeds.index(member.seed) for member in members], device=self.device)
        self.orders: dict[int, tuple[int, NDArray[np.int64]]] = {}  # seed → epoch and order of its images
        self.losses = losses

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return images (S, B, C, H, W) and classes (S, B) of a step; members of one seed have the same."""
        epoch, number = divmod(step, self.first.per_epoch)
        batches = []
        for seed in self.seeds:
            if self.orders.get(seed, (None,))[0] != epoch:
                sampler = EpochSampler(len(self.images.parts["train"][1]), shuffle=True, seed=seed)
                sampler.set_epoch(epoch)
                self.orders[seed] = epoch, np.array([index for _, index in sampler])
            size = self.images.batch_size
            indices = self.orders[seed][1][number * size : (number + 1) * size]
            batches.append(self.images.training_batch(seed, epoch, indices))
        images, labels = zip(*batches, strict=True)
        return torch.stack(images)[self.which], torch.stack(labels)[self.which]

    def advance(self, steps: int) -> list[float]:
        """Take steps; return the mean training loss of each member over them."""
        total = torch.zeros(len(self.members), device=self.device)
        for step in range(self.first.step, self.first.step + steps):
            images, labels = self.batch(step)
            with self.autocast:
                losses = self.losses(self.parameters, self.buffers, images, labels)
            losses.sum().backward()
            for member in self.members:
                member.update()
            for whole in self.parameters.values():
                whole.grad.zero_()
            total += losses.detach()
        return (total / steps).tolist()

    def train(self, deadline: float) -> None:
        """Train to the end, or stop before a deadline, in seconds since 1970."""
        first, saved, took = self.first, time.perf_counter(), 0.0
        while first.step < first.total:
            if time.time() + took > deadline:
                self.save()
                return
            begin = time.perf_counter()
            steps = min(first.every - first.step % first.every, first.total - first.step)
            losses = self.advance(steps)
            rate = steps * len(self.members) * self.images.batch_size * self.operations / (time.perf_counter() - begin)
            with self.autocast:
                values = [self.images.evaluate(member.model.network, "val") for member in self.members]
            took = time.perf_counter() - begin
            for member, loss, value in zip(self.members, losses, values, strict=True):
                member.seconds += took / len(self.members)
                row = {"epoch": (member.step - 1) // member.per_epoch, "seconds": member.seconds, "train/loss": loss}
                member.log.log_metrics({**row, **value}, step=member.step - 1)
            print(f"  step {first.step} of {first.total}: {speed(rate, self.device)}", flush=True)
            if first.step < first.total and time.perf_counter() - saved > SAVE_AFTER:
                self.save()
                saved = time.perf_counter()
        for member, value in zip(self.members, values, strict=True):
            self._finish(member, value, rate)

    def save(self) -> None:
        for member in self.members:
            member.save()

    def _finish(self, member: Member, validated: dict[str, float], rate: float) -> None:
        with self.autocast:
            tested = self.images.evaluate(member.model.network, "test")
        size, known = self.images.batch_size, len(self.images.parts["train"][1])
        result = {
            "metrics": {**validated, **tested},
            "epochs": member.total // member.per_epoch,
            "steps": member.total,
            "training_samples": min(known, member.total * size),
            "seconds": member.seconds,
            "initialization_seconds": member.initialization_seconds,
            "tested": True,
            "together": len(self.members),
            "speed": speed(rate, self.device),
            "environment": environment(),
        }
        member.run.write_result(result)
        (member.run.folder / STATE).unlink(missing_ok=True)


def operations(network: nn.Module, images: Images) -> float:
    """Return the arithmetic of a training step for each image, an addition and a product each counted."""
    some = images.normalized(images.parts["train"][0][:2])
    network.eval()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # no other is counted on a CPU
        network(some).sum().backward()
    network.train().zero_grad()
    return counter.get_total_flops() / len(some)


def speed(rate: float, device: torch.device) -> str:
    """Return operations a second, and their share of the device's peak where it is known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = next((peak for part, peak in PEAKS.items() if part in name), None)
    return f"{rate / 1e12:.3g} TFLOP/s" + (f", {rate / peak:.1%} of the peak" if peak else "")


def plan(words: Sequence[str], folder: Path) -> Comparison:
    """Return the comparison that ``compare`` would make of its arguments, in a folder that says so."""
    options, further = compare_parser().parse_known_args(words)
    options.output = str(folder)
    return prepare(options, further, shlex.join(["structured-init", "compare", *words]))


def train(runs: Sequence[Run], deadline: float, together: int, device: torch.device) -> int:
    """Train those of these runs that are missing until a deadline (in seconds since 1970); return how many are left."""
    known: dict[Point, Images] = {}
    losses = None
    while waiting := [run for run in runs if not run.complete]:
        if time.time() > deadline:
            return len(waiting)
        first = waiting[0]
        group = [run for run in waiting if run.point == first.point and reached(run) == reached(first)][:together]
        print(f"{len(waiting)} runs are left; now {', '.join(run.name for run in group)}", flush=True)
        members = []
        for run in group:
            cli = BuildOnly(expand(run.arguments))
            if run.point not in known:
                known[run.point] = Images(cli, device)
            members.append(Member(run, cli, known[run.point]))
        losses = losses or losses_of(members[0].model, compiled=device.type == "cuda")
        Group(members, known[first.point], losses, cli.trainer.precision).train(deadline)
    return 0


def main() -> None:
    """Train the studies in their order, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop before so many; runs that are left go on")
    parser.add_argument("--study", nargs="+", choices=STUDIES, default=[name for name in STUDIES if name != "small"])
    parser.add_argument("--output", type=Path, default=Path("runs/published"))
    arguments = parser.parse_args()
    deadline = time.time() + 60 * arguments.minutes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for study in arguments.study:
        comparison = plan(shlex.split(STUDIES[study]), arguments.output / study)
        comparison.write()
        left = train(comparison.runs(), deadline, TOGETHER[study], device)
        if left:
            print(f"The time is up: {left} runs of '{study}' are left. Run the same command again to continue.")
            raise SystemExit(LEFT)


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"published: {error}") from None
