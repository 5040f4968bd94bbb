"""BeforeAndAfter: what all callbacks share that look at a model before and after training.

A diagnosis never ends a training: what could not be looked at is noted, and the training goes on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from safetensors.torch import save_file
from torch import Tensor, nn

from callbacks.figures import save_figure
from structured_init.util.errors import StructuredInitError, one_line
from structured_init.util.files import read_tensors, replacing, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING_FILE = "missing.json"
SHARDED = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"}  # a rank holds a part of each weight


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
            elif hasattr(getattr(logger, "experiment", None), "add_figure"):
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
        if not self.enabled:
            return
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
        if trainer.global_step == 0 and not resumed:
            self.records = {}
            self.capture("before", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the records as texts, since a checkpoint would ask about every number of a list."""
        return {"records": {phase: json.dumps(record) for phase, record in self.records.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.records = {phase: json.loads(record) for phase, record in state_dict["records"].items()}

    @property
    def written_before(self) -> Path:
        """The file that was written before training; where there is none, a path of no file."""
        return Path(self.records.get("before", {}).get("path", ""))

    def read_before(self, names: Iterable[str]) -> dict[str, dict[str, Tensor]]:
        """Return "before" → the tensors that were written before training; nothing where there are none any more."""
        path = self.written_before
        return {"before": read_tensors(path, names)} if path.is_file() else {}

    def save(self, phase: str, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write tensors, and return the record.

        A resumed run that writes elsewhere gets a copy of those from before training.
        """
        path = folder / f"{phase}.safetensors"
        with replacing(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        before = self.written_before
        if before.is_file() and not (folder / before.name).exists():
            with replacing(folder / before.name) as temporary:
                shutil.copyfile(before, temporary)
        return {"path": str(path.absolute())}


def null_for_nan(value: Any) -> Any:
    """Return plain values that JSON has: null for nan and infinity."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)
