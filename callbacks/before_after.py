"""Callbacks that look at a model before and after training: filters, representations, weight products.

A diagnosis never ends a training: what could not be looked at is noted, and the training goes on.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from safetensors.torch import save_file
from torch import Tensor, nn

from callbacks.figures import covariance_figure, filter_figure, save_figure, variance_figure
from callbacks.samples import probe_batch
from structured_init.analysis import WeightProducts, weight_products
from structured_init.analysis.cka import gram_matrices, repeated_blocks
from structured_init.analysis.filters import depthwise_filters, filter_change, filter_statistics
from structured_init.arguments import check_whole
from structured_init.errors import StructuredInitError, one_line
from structured_init.files import read_tensors, replacing, write_json
from structured_init.hosts import AttentionSite, attention_sites
from structured_init.hosts.attention import left_unknown, may_attend
from structured_init.hosts.depthwise import depthwise_conv_sites
from structured_init.names import within
from structured_init.overlay import Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING_FILE = "missing.json"
SHARDED = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"}  # a rank holds a part of each weight
Drawn = dict[str, tuple["Figure", Path]]
CORNER = 64  # rows and columns of a product that are kept


def is_sharded(trainer: Trainer) -> bool:
    """Tell whether no rank holds all weights: then every rank has to look."""
    return any(cls.__name__ in SHARDED for cls in type(trainer.strategy).__mro__)


def runnable(trainer: Trainer, pl_module: LightningModule) -> nn.Module:
    """Return what a probe runs: FSDP1 gathers the weights of the root in the wrapper's forward, not in the module's."""
    return trainer.strategy.model if type(trainer.strategy).__name__ == "FSDPStrategy" else pl_module


def send(loggers: Iterable[Logger], drawn: Drawn, step: int, section: str = "attention") -> None:
    """Show the figures to TensorBoard and W&B; Lightning has no common way to log an image."""
    for logger in loggers:
        writer = getattr(logger, "experiment", None)
        for name, (figure, path) in drawn.items():
            if hasattr(logger, "log_image"):
                logger.log_image(key=f"{section}/{name}", images=[str(path)], step=step)
            elif hasattr(writer, "add_figure"):
                writer.add_figure(f"{section}/{name}", figure, global_step=step)


def note_missing(trainer: Trainer, what: str, phase: str, error: Exception) -> None:
    """Warn that ``what`` was not seen at a phase, and note it in ``missing.json``; all ranks call."""
    folder = Path(trainer.log_dir or trainer.default_root_dir)  # a collective: every rank asks
    kind = "" if isinstance(error, StructuredInitError) else f"{type(error).__name__}: "
    reason = (kind + one_line(error))[:500]
    rank_zero_warn(f"{what}: nothing was recorded at '{phase}': {reason}")
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    file = folder / MISSING_FILE
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        write_json(file, {**known, what: {**known.get(what, {}), phase: reason}})
    except (StructuredInitError, OSError, ValueError):  # the same full disk, perhaps: the warning has said it
        return


def is_fatal(error: Exception | None, phase: str) -> bool:
    """Tell whether an error ends the run: a mistake that shows before training does, nothing that comes later."""
    return phase == "before" and isinstance(error, StructuredInitError)


class BeforeAndAfter(Callback):
    """Looks at the model when training starts at step 0, and when it ends; a subclass says at what.

    Training is bit-identical with and without it. What was seen before training is not looked for again in a resumed
    run; one that writes elsewhere gets a copy. Rank zero writes, and every rank is told what came of it. A fast
    development run writes nothing.

    Args:
        enabled: false does nothing at all.

    Raises:
        StructuredInitError: before training, the files cannot be written. What goes wrong otherwise is a warning and
            an entry in ``missing.json``.
    """

    what: ClassVar[str]  # is looked at, such as ``"filters"``: the name of the folder in ``log_dir``
    # the places in a model whose weights are read, which no rank can where they are sharded; None where it is run
    sites: ClassVar[Callable[[nn.Module], list] | None] = None

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.before: str | None = None  # path of what was written before training; it travels in the checkpoint

    def look(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        """Return what is to be written; a ``StructuredInitError`` says that the model has nothing of the kind."""
        raise NotImplementedError

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: Any) -> Path | None:
        """Write what :meth:`look` returned, and return the file; None where there is nothing to write."""
        raise NotImplementedError

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> str | None:
        """Look at the model and write what was seen; every rank calls, and gets the path that was written.

        Where rank zero cannot write before training, every rank raises: the others would wait in their first step.
        """
        folder = Path(trainer.log_dir or trainer.default_root_dir) / self.what.replace(" ", "_")  # a collective
        path, absent, failure = None, None, None
        if self.sites is not None and is_sharded(trainer):
            if phase == "before" and self.sites(pl_module):
                name = type(trainer.strategy).__name__
                rank_zero_info(f"{self.what} are not written: no rank holds all of them under {name}")
            return None
        try:
            if trainer.is_global_zero or is_sharded(trainer):
                seen = self.look(trainer, pl_module)
        except StructuredInitError as error:
            absent = error
        except Exception as error:
            failure = error
        try:
            if trainer.is_global_zero and absent is None and failure is None and not trainer.fast_dev_run:
                path = self.write(phase, folder, trainer, seen)
        except Exception as error:
            failure = error
        path = None if path is None else str(path.absolute())
        path, absent, failure = trainer.strategy.broadcast((path, absent, failure))
        if is_fatal(failure, phase):
            raise failure
        if failure is not None:
            note_missing(trainer, self.what, phase, failure)
        elif absent is not None and phase == "before":
            rank_zero_info(f"{self.what}: {absent}")
        return path

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the model before training, in a run that starts at step 0 and does not know it already."""
        resumed = trainer.ckpt_path is not None and self.before is not None
        if self.enabled and trainer.global_step == 0 and not resumed:
            self.before = self.capture("before", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.enabled:
            self.capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["before"]

    def _save(self, phase: str, folder: Path, tensors: Mapping[str, Tensor]) -> Path:
        """Write tensors; after training, copy those before it to where a resumed run writes."""
        final = folder / f"{phase}.safetensors"
        with replacing(final) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        before = self._known_before()
        if phase == "after" and before is not None and not (folder / before.name).exists():
            with replacing(folder / before.name) as temporary:
                shutil.copyfile(before, temporary)
        return final

    def _known_before(self) -> Path | None:
        return Path(self.before) if self.before is not None and Path(self.before).is_file() else None


class FilterCallback(BeforeAndAfter):
    """Write every depthwise convolution's filters before and after training, with statistics and figures.

    Into ``<log_dir>/filters`` (``default_root_dir`` without a logger) go ``before.safetensors`` and
    ``after.safetensors`` (a tensor (F, h, w) per layer, float32), ``statistics.json`` (per moment and layer, and what
    changed), and the figures ``covariances.png``, ``filters.png`` and ``variances.png``, which TensorBoard and W&B get
    as well. Nothing but weights is read. A model without depthwise convolutions gives no files and no message. For
    resumed runs and errors see :class:`BeforeAndAfter`.

    Args:
        enabled: false does nothing at all.
        figures: whether to draw.
    """

    what = "filters"
    sites = staticmethod(depthwise_conv_sites)

    def __init__(self, enabled: bool = True, figures: bool = True) -> None:
        super().__init__(enabled)
        self.figures = figures

    def look(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        return depthwise_filters(pl_module)

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: dict[str, Tensor]) -> Path | None:
        if not seen:
            return None
        path, moments = self._save(phase, folder, seen), {phase: seen}
        if phase == "after" and (before := self._known_before()) is not None:
            moments = {"before": read_tensors(before, seen), **moments}
        write_json(folder / "statistics.json", filter_tables(moments))
        if phase == "after" and self.figures:
            figures = {"covariances": covariance_figure, "filters": filter_figure, "variances": variance_figure}
            drawn = {name: (draw(moments), folder / f"{name}.png") for name, draw in figures.items()}
            for figure, file in drawn.values():
                save_figure(figure, file)
            send(trainer.loggers, drawn, trainer.global_step, "filters")
        return path


def filter_tables(moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return statistics per moment and layer, and under ``change`` what lies between ``before`` and ``after``."""
    numbers = {
        label: {name: filter_statistics(filters) for name, filters in layers.items()}
        for label, layers in moments.items()
    }
    if {"before", "after"} <= moments.keys():
        numbers["change"] = {
            name: filter_change(filters, moments["after"][name]) for name, filters in moments["before"].items()
        }
    return {
        label: {name: {key: finite_or_null(value) for key, value in row.items()} for name, row in layers.items()}
        for label, layers in numbers.items()
    }


class RepresentationCallback(BeforeAndAfter):
    """Write Gram matrices of every block's output on fixed samples, before and after training.

    ``<log_dir>/representations/{before,after}.safetensors`` hold a tensor (minibatches, m, m) per block in float32,
    from which ``structured_init.analysis.cka_matrix`` compares any two blocks of any two runs on the same data.
    A model without repeated blocks, or data with fewer than four samples, gives a line and no files. For resumed runs
    and errors see :class:`BeforeAndAfter`.

    Args:
        samples: size of the probe, from validation data, else from training data.
        batch_size: m, samples per minibatch; samples beyond a multiple of it are left out.
        seed: of the choice of samples.
        enabled: false does nothing at all.

    Raises:
        StructuredInitError: ``batch_size`` is below 4 or above ``samples``.
    """

    what = "representations"

    def __init__(self, samples: int = 256, batch_size: int = 64, seed: int = 0, enabled: bool = True) -> None:
        check_whole("RepresentationCallback", samples=samples, batch_size=batch_size)
        if not 4 <= batch_size <= samples:
            raise StructuredInitError(
                f"RepresentationCallback: batch_size must be from 4 to samples ({samples}), got {batch_size}"
            )
        super().__init__(enabled)
        self.samples, self.batch_size, self.seed = samples, batch_size, seed

    def look(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        probe = probe_batch(trainer, pl_module, self.samples, self.seed)
        blocks = repeated_blocks(pl_module)
        with trainer.precision_plugin.forward_context():
            return gram_matrices(
                runnable(trainer, pl_module), *probe.inputs, blocks=blocks, batch_size=self.batch_size, **probe.named
            )

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: dict[str, Tensor]) -> Path:
        return self._save(phase, folder, {name: gram.float() for name, gram in seen.items()})


class WeightProductsCallback(BeforeAndAfter):
    """Write the weight products of every attention layer, before and after training.

    Into ``<log_dir>/weight_products`` (``default_root_dir`` without a logger) go ``before.safetensors`` and
    ``after.safetensors``: per layer ``<layer>:query_key`` (H, c, c) and ``<layer>:value_output`` (c, c) in float32, the
    upper left corners of the products, c at most 64; and ``summary.json``: moment → layer → mean diagonal and standard
    deviation off the diagonal of the whole products, with the layers in the order of the model. A number that is not
    finite is null there.

    Weights are read, and no sample where all attention is of known classes; else two samples are run, which shows the
    projections of the rest. A model without attention gives no files and no message. Attention whose projections cannot
    be read is left out, with a warning and an entry in ``missing.json``; so is what may be attention in a network that
    does not run on the samples. Under a strategy that shards the weights nothing is written, since no rank holds all of
    them. For resumed runs and errors see :class:`BeforeAndAfter`.

    Args:
        enabled: false does nothing at all.
    """

    what = "weight products"
    sites = staticmethod(attention_sites)

    left_out: dict[str, str]  # attention layer → why its products are not written, as of the last look

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> str | None:
        self.left_out = {}
        path = super().capture(phase, trainer, pl_module)
        self.left_out = trainer.strategy.broadcast(self.left_out)
        if self.left_out:
            reasons = "; ".join(dict.fromkeys(self.left_out.values()))
            what = f"{self.what} of {', '.join(self.left_out)}"
            note_missing(trainer, what, phase, StructuredInitError(reasons))
        return path

    def look(self, trainer: Trainer, pl_module: LightningModule) -> list[AttentionSite]:
        """Return the attention layers, whose products are computed one at a time."""

        def samples() -> Any:
            probe = probe_batch(trainer, pl_module, 2, 0)
            return probe.named or probe.inputs

        weights = Weights(pl_module, batch=samples)
        with trainer.precision_plugin.forward_context():
            sites = attention_sites(weights)
        ran, known = weights.found.ran or (), [site.name for site in attention_sites(weights, cross=True)]
        # Of what is called attention and ran, the pass tells whether it attends.
        self.left_out = {name: why for name, why in left_unknown(weights).items() if name not in ran}
        for found in weights.found.watched or ():
            if found.reason and not any(within(found.name, name) for name in [*known, *self.left_out]):
                self.left_out[found.name] = found.reason
        if why := weights.found.unwatched:  # the pass that would have told
            self.left_out = dict.fromkeys([*self.left_out, *may_attend(weights, [*known, *self.left_out])], why)
        return sites

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: list[AttentionSite]) -> Path | None:
        tensors, summaries = {}, {}
        for site in seen:
            try:
                products = weight_products(site)
            except StructuredInitError as error:
                self.left_out[site.name] = str(error)
                continue
            # Only the corner of one layer at a time stays in memory.
            corner = WeightProducts(*(each[..., :CORNER, :CORNER].clone() for each in products))
            tensors |= {f"{site.name}:{name}": value for name, value in corner._asdict().items()}
            summaries[site.name] = {
                name: [finite_or_null(each) for each in value] if isinstance(value, list) else finite_or_null(value)
                for name, value in products.summary().items()
            }
        if not tensors:
            return None
        path, before, known = self._save(phase, folder, tensors), self._known_before(), {}
        if phase == "after" and before is not None and (summary := before.with_name("summary.json")).is_file():
            known = json.loads(summary.read_text(encoding="utf-8"))
        earlier = {"before": known["before"]} if "before" in known else {}
        write_json(folder / "summary.json", {**earlier, phase: summaries})
        return path


def finite_or_null(value: float) -> float | None:
    """Return a number that JSON has: null for nan and infinity."""
    return value if math.isfinite(value) else None
