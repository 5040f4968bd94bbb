"""Callbacks that look at a model before and after training: filters, representations, weight products.

A diagnosis never ends a training: what could not be looked at is noted, and the training goes on.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from safetensors.torch import save_file
from torch import Tensor, nn

from callbacks.figures import covariance_figure, filter_figure, save_figure, variance_figure
from callbacks.samples import probe_batch
from structured_init.analysis import weight_products
from structured_init.analysis.cka import gram_matrices, repeated_blocks
from structured_init.analysis.filters import depthwise_filters, filter_change, filter_statistics
from structured_init.arguments import check_whole
from structured_init.errors import StructuredInitError, one_line
from structured_init.files import read_tensors, replacing, write_json
from structured_init.hosts import AttentionSite, attention_sites
from structured_init.hosts.attention import left_unknown, may_attend
from structured_init.names import within
from structured_init.overlay import Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING_FILE = "missing.json"
SHARDED = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"}  # a rank holds a part of each weight
CORNER = 64  # rows and columns of a product that are kept


def is_sharded(trainer: Trainer) -> bool:
    """Tell whether no rank holds all weights: then every rank has to look."""
    return any(cls.__name__ in SHARDED for cls in type(trainer.strategy).__mro__)


def refuse_sharded(trainer: Trainer) -> None:
    """Refuse to read weights of which no rank holds all."""
    if is_sharded(trainer):
        name = type(trainer.strategy).__name__
        raise StructuredInitError(f"not written, since no rank holds all weights under {name}")


def runnable(trainer: Trainer, pl_module: LightningModule) -> nn.Module:
    """Return what a probe runs: FSDP1 gathers the weights of the root in the wrapper's forward, not in the module's."""
    return trainer.strategy.model if type(trainer.strategy).__name__ == "FSDPStrategy" else pl_module


def show_figures(trainer: Trainer, folder: Path, figures: Mapping[str, Figure]) -> None:
    """Write figures into a folder, and send them to TensorBoard and W&B under its name."""
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        save_figure(figure, path)
        for logger in trainer.loggers:  # Lightning has no common way to log an image
            if hasattr(logger, "log_image"):
                logger.log_image(key=f"{folder.name}/{name}", images=[str(path)], step=trainer.global_step)
            elif hasattr(logger.experiment, "add_figure"):
                logger.experiment.add_figure(f"{folder.name}/{name}", figure, global_step=trainer.global_step)


def note_missing(trainer: Trainer, folder: Path, what: str, phase: str, error: Exception) -> None:
    """Warn that ``what`` was not seen at a phase, and note it in the folder's ``missing.json``."""
    kind = "" if isinstance(error, StructuredInitError) else f"{type(error).__name__}: "
    reason = (kind + one_line(error))[:500]
    rank_zero_warn(f"{what}: nothing was recorded at '{phase}': {reason}")
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    file = folder / MISSING_FILE
    with suppress(StructuredInitError, OSError, ValueError):  # the same full disk, perhaps: the warning has said it
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        known.setdefault(what, {})[phase] = reason
        write_json(file, known)


class BeforeAndAfter(Callback):
    """Looks at the model when training starts at step 0, and when it ends; a subclass says at what.

    Training is bit-identical with and without it. What was seen before training is not looked for again in a resumed
    run; one that writes elsewhere gets a copy. Rank zero writes, and every rank is told what came of it. A fast
    development run looks, and writes nothing.

    Args:
        enabled: false does nothing at all.

    Attributes:
        records: what is known of each look, by its phase, all of plain types; ``path`` is the file that was written.

    Raises:
        StructuredInitError: before training, the files cannot be written. What goes wrong otherwise is a warning and
            an entry in ``missing.json``.
    """

    what: ClassVar[str]  # is looked at, such as ``"filters"``: the name of the folder in ``log_dir``

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.records: dict[str, dict[str, Any]] = {}

    def look(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        """Return what is to be written; a ``StructuredInitError`` says why there is nothing to see."""
        raise NotImplementedError

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: Any) -> dict[str, Any] | None:
        """Write what :meth:`look` returned, and return the record of it; None where there is nothing to write."""
        raise NotImplementedError

    def not_seen(self, phase: str, trainer: Trainer, folder: Path, error: StructuredInitError) -> None:
        """Answer an error of :meth:`look`, on every rank."""
        if phase == "before":
            rank_zero_info(f"{self.what}: {error}")

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the model where its weights are, write on rank zero, and tell every rank what came of it.

        Where rank zero cannot write before training, every rank raises: the others would wait in their first step.
        """
        log_dir = Path(trainer.log_dir or trainer.default_root_dir)  # a collective: every rank asks
        record, failure, looked = None, None, False
        try:
            if trainer.is_global_zero or is_sharded(trainer):
                seen = self.look(trainer, pl_module)
            looked = True
            if trainer.is_global_zero and not trainer.fast_dev_run:
                record = self.write(phase, log_dir / self.what.replace(" ", "_"), trainer, seen)
        except Exception as error:
            failure = error
        record, failure, looked = trainer.strategy.broadcast((record, failure, looked))
        if record is not None:
            self.records[phase] = record
        if isinstance(failure, StructuredInitError) and not looked:
            self.not_seen(phase, trainer, log_dir, failure)
        elif isinstance(failure, StructuredInitError) and phase == "before":
            raise failure
        elif failure is not None:
            note_missing(trainer, log_dir, self.what, phase, failure)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the model before training, in a run that starts at step 0 and does not know it already."""
        resumed = trainer.ckpt_path is not None and "before" in self.records
        if self.enabled and trainer.global_step == 0 and not resumed:
            self.records = {}
            self.capture("before", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.enabled:
            self.capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the records as texts, since a checkpoint would ask about every number of a list."""
        return {"records": {phase: json.dumps(record) for phase, record in self.records.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.records = {phase: json.loads(record) for phase, record in state_dict["records"].items()}

    def read_before(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the tensors that were written before training; none where there are none any more."""
        path = Path(self.records["before"]["path"]) if "before" in self.records else None
        return read_tensors(path, names) if path is not None and path.is_file() else {}

    def save(self, phase: str, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write tensors, and return the record.

        A resumed run that writes elsewhere gets a copy of those from before training.
        """
        path = folder / f"{phase}.safetensors"
        with replacing(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        before = Path(self.records["before"]["path"]) if "before" in self.records else path
        if before.is_file() and not (folder / before.name).exists():
            with replacing(folder / before.name) as temporary:
                shutil.copyfile(before, temporary)
        return {"path": str(path.absolute())}


def null_for_nan(value: Any) -> Any:
    """Return plain values that JSON has: null for nan and infinity."""
    if isinstance(value, dict):
        return {key: null_for_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [null_for_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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

    def __init__(self, enabled: bool = True, figures: bool = True) -> None:
        super().__init__(enabled)
        self.figures = figures

    def look(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        refuse_sharded(trainer)
        return depthwise_filters(pl_module)

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: dict[str, Tensor]) -> dict[str, Any] | None:
        if not seen:
            return None
        record, moments = self.save(phase, folder, seen), {phase: seen}
        before = self.read_before(seen) if phase == "after" else {}
        if before:
            moments = {"before": before, **moments}
        tables = {}
        for moment, layers in moments.items():
            tables[moment] = {name: filter_statistics(filters) for name, filters in layers.items()}
        if before:
            tables["change"] = {name: filter_change(filters, seen[name]) for name, filters in before.items()}
        write_json(folder / "statistics.json", null_for_nan(tables))
        if phase == "after" and self.figures:
            draw = {"covariances": covariance_figure, "filters": filter_figure, "variances": variance_figure}
            show_figures(trainer, folder, {name: figure(moments) for name, figure in draw.items()})
        return record


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

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: dict[str, Tensor]) -> dict[str, Any]:
        return self.save(phase, folder, {name: gram.float() for name, gram in seen.items()})


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

    def look(self, trainer: Trainer, pl_module: LightningModule) -> tuple[list[AttentionSite], dict[str, str]]:
        """Return the attention layers, whose products are computed one at a time, and why those of others are not."""
        refuse_sharded(trainer)

        def samples() -> Any:
            probe = probe_batch(trainer, pl_module, 2, 0)
            return probe.named or probe.inputs

        weights = Weights(pl_module, batch=samples)
        with trainer.precision_plugin.forward_context():
            sites = attention_sites(weights)
        return sites, unread_attention(weights)

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: Any) -> dict[str, Any] | None:
        sites, left_out = seen
        corners, summary = {}, {}
        for site in sites:
            try:
                products = weight_products(site)
            except StructuredInitError as error:
                left_out[site.name] = str(error)
                continue
            # Only the corner of one layer at a time stays in memory.
            for name, product in products._asdict().items():
                corners[f"{site.name}:{name}"] = product[..., :CORNER, :CORNER].clone()
            summary[site.name] = null_for_nan(products.summary())
        if left_out:
            reasons = StructuredInitError("; ".join(dict.fromkeys(left_out.values())))
            note_missing(trainer, folder.parent, f"{self.what} of {', '.join(left_out)}", phase, reasons)
        if not corners:
            return None
        record = {**self.save(phase, folder, corners), "summary": summary}
        records = {**self.records, phase: record}
        write_json(folder / "summary.json", {moment: known["summary"] for moment, known in records.items()})
        return record


def unread_attention(weights: Weights) -> dict[str, str]:
    """Return name → why of every layer that attends, or may attend, and is no attention site."""
    seen = [found.name for found in weights.seen.layers if found.reason]
    ran = weights.seen.ran or ()
    unread = {}
    for name, why in left_unknown(weights).items():
        # Of what is called attention and ran, the pass tells whether it attends.
        if name not in ran or any(within(each, name) for each in seen):
            unread[name] = why
    if weights.seen.why_not:  # the pass that would have told
        known = [site.name for site in attention_sites(weights, cross=True)]
        unread = dict.fromkeys([*unread, *may_attend(weights, [*known, *unread])], weights.seen.why_not)
    return unread
