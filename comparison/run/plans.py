"""Every initialization of a comparison planned on its network, before anything is trained or written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from comparison.run.plan import Comparison
from comparison.run.resolve import build
from lightning_modules.cli.lightning_cli import CLI
from lightning_modules.cli.samples import two_samples
from structured_init import Initializer, InitReport, initialize
from structured_init.errors import StructuredInitError


class Plans:
    """Plans initializations on their networks at the first point of the grid; nothing is written.

    A network is built once for all arms that have the same. It stays quick: solvers take no step, and not planned is
    what needs samples, or what a module builds later than in its constructor. Two samples are read only where attention
    is of no known class; without data here, such an arm is not planned either.

    Args:
        comparison: what is compared.
        built: the first arm.
        further: arguments for building.
    """

    def __init__(self, comparison: Comparison, built: CLI, further: Sequence[str]) -> None:
        self.further = further
        self.datamodule = built.datamodule
        self.models = {_network_of(comparison, next(iter(comparison.arms))): built.model}

    def plan(self, comparison: Comparison, label: str, initializer: Initializer) -> InitReport | None:
        """Return the report of a plan, or None where there is none without samples.

        Raises:
            StructuredInitError: names the arm; a required part finds no place in the network.
        """
        place, *_ = comparison.points()
        network = _network_of(comparison, label)
        with naming(label):
            if network not in self.models:
                arguments = comparison.arm_arguments(comparison.arms[label], place)
                self.models[network] = build([*arguments, *self.further]).model
            model = self.models[network]
            real = initializer.needs_batch or initializer.needs_batches
            if real or next(model.parameters(), None) is None:
                return None
            leave_out_iterations(initializer)
            strict = bool(comparison.changes[label].get("init.strict"))
            offer = _Offer(model, self.datamodule)
            try:
                return initialize(
                    model, initializer, seed=comparison.seeds[0], batch=offer, dry_run=True, strict=strict
                )
            except StructuredInitError:
                if offer.failed and not strict:  # where the runs are, there may be data
                    return None
                raise


class _Offer:
    """Two samples for whoever asks; ``failed`` tells that there were none."""

    def __init__(self, model: LightningModule, datamodule: LightningDataModule | None) -> None:
        self.model, self.datamodule, self.failed = model, datamodule, False

    def __call__(self) -> Any:
        self.failed = True
        inputs = two_samples(self.model, self.datamodule)
        self.failed = False
        return inputs


def leave_out_iterations(part: Any) -> None:
    """Let solvers inside an initializer take no step: what they begin with fits where their solution does."""
    if isinstance(getattr(part, "iterations", None), int):
        part.iterations = 0
    for each in vars(part).values() if hasattr(part, "__dict__") else ():
        for inner in each if isinstance(each, (list, tuple)) else [each]:
            if type(inner).__module__.startswith("structured_init."):
                leave_out_iterations(inner)


def _network_of(comparison: Comparison, label: str) -> str:
    """Return what an arm changes beside its initialization; arms that change the same have the same network."""
    changes = comparison.changes[label]
    return repr({key: value for key, value in changes.items() if not key.startswith("init.")})


@contextlib.contextmanager
def naming(label: str) -> Iterator[None]:
    """Say in an expected error which initialization it is about."""
    try:
        yield
    except StructuredInitError as error:
        raise StructuredInitError(f"initialization '{label}': {error}") from None
