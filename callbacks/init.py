"""InitCallback: apply an initializer at the one moment where it holds, whatever the strategy."""

from __future__ import annotations

import os
import time
import warnings
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from callbacks.lightning_private import averaged_model
from callbacks.samples import training_batch
from structured_init import Default, Initializer, InitReport, StructuredInitError, freeze, initialize
from structured_init.initializer import pending_freezing
from structured_init.util.arguments import check_choice, check_whole
from structured_init.util.errors import shown
from structured_init.util.files import write_json
from structured_init.util.names import plain_name

REPORT_FILE = "init_report.json"
ACCOUNT = "_structured_init"  # of how the weights came about: on the model it travels with deepcopy; in a checkpoint
TOO_LATE = {  # by name, so that nothing has to be installed to ask
    "DeepSpeedStrategy": "DeepSpeed has copied the weights before on_fit_start",
    "FSDPStrategy": "FSDP1 has flattened the weights before on_fit_start",
}


class InitCallback(Callback):
    """Initialize the model with an initializer before training, and keep its report.

    The values are written in place at ``on_fit_start``, after DDP's broadcast, after the optimizers are built and
    after a checkpoint is restored; they are equal on every rank, and the global random state is untouched. What the
    initializer freezes is frozen in ``setup`` on every fit, a resumed one too. Weights that come from a checkpoint or
    that were initialized before are left alone: the account of how they came about is kept on the model and in its
    checkpoints, so one callback serves any number of models.

    Args:
        initializer: what to apply; ``Default`` for what the host library does.
        seed: of its draws; ``None`` takes the seed of ``seed_everything``, or 0.
        when: ``"fit_start"``, or ``"setup"`` for strategies that copy the weights earlier (DeepSpeed, FSDP1) and for
            the learning-rate and batch-size finders. ``"setup"`` needs a model that is built in its constructor.
        samples: how many training samples, at most, an initializer is given that runs the model on real ones, such as
            ``AdamSolver`` with ``pseudo_input="batch"``. See :func:`training_batch`. Attention that no layout was
            written for, and layouts that were registered outside of this library, are found and checked on two of them.
        strict: refuse a model of which attention would be left alone; see :func:`structured_init.initialize`.
        progress: show on stderr of rank 0, in a terminal or notebook, which layer is reached, if it takes more than 3
            seconds.

    Attributes:
        report: the :class:`~structured_init.InitReport` of the model that this callback initialized last, else
            ``None``. ``init_report.json`` in the log folder has it too, also in that of a resumed run.
        seconds: the wall time that this fit's initialization took; 0 where nothing was initialized.

    Raises:
        StructuredInitError: in ``setup``, a finder or strategy under which the values would come too late; before the
            first step, a log folder that cannot be written to; no training data for an initializer that needs some.
    """

    def __init__(
        self,
        initializer: Initializer,
        seed: int | None = None,
        when: Literal["fit_start", "setup"] = "fit_start",
        samples: int = 16,
        strict: bool = False,
        progress: bool = True,
    ) -> None:
        if not isinstance(initializer, Initializer):
            needed = "an Initializer object such as Mimetic() or preset('mimetic')"
            raise StructuredInitError(f"InitCallback needs {needed}, got {shown(initializer)}")
        check_choice("InitCallback", when=(when, Literal["fit_start", "setup"]))
        check_whole("InitCallback", samples=samples)
        check_whole("InitCallback", least=0, null=True, seed=seed)
        self.initializer, self.seed = initializer, seed
        self.when: Literal["fit_start", "setup"] = when
        self.samples, self.strict, self.progress = samples, strict, progress
        self.report: InitReport | None = None
        self.seconds, self._resumed = 0.0, False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self.seconds = 0.0
        given = [each for each in trainer.callbacks if isinstance(each, InitCallback)]
        if sum(not isinstance(each.initializer, Default) for each in given) > 1:
            raise StructuredInitError("two InitCallbacks initialize one model: give one, with Compose([…]) for both")
        if self.when == "fit_start" and not isinstance(self.initializer, Default):  # Default has nothing to write
            refuse_what_comes_too_early(trainer)
        self._resumed = False
        self._freeze(pl_module)
        if self.when == "setup":
            self._initialize(trainer, pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note where the weights came from.

        This precedes ``on_fit_start``, but follows it under strategies that shard, where the checkpoint then has
        replaced what was written.
        """
        self._resumed, account = True, checkpoint.get(ACCOUNT, {})
        if account != getattr(pl_module, ACCOUNT, None):
            self.report = None
        setattr(pl_module, ACCOUNT, account)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Of layers made in configure_model, which setup could not see yet.
        late = pending_freezing(pl_module, self.initializer)
        if late and isinstance(trainer.strategy, DDPStrategy):
            raise StructuredInitError(
                f"'{late[0]}' cannot be frozen after DDP has wrapped it: build it in the constructor, "
                "not in configure_model"
            )
        if late or self._resumed:
            self._freeze(pl_module)
        if self.when == "fit_start":
            self._initialize(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Publish the account here: only now every strategy has restored its checkpoint."""
        account = getattr(pl_module, ACCOUNT)
        if account.get("initializer", repr(self.initializer)) != repr(self.initializer):
            rank_zero_warn(
                f"the model was already initialized with {account['initializer']} and keeps it; "
                "build a new model to initialize again"
            )
        if account:
            publish(account, trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[ACCOUNT] = getattr(pl_module, ACCOUNT, {})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave alone also what was loaded from a checkpoint of weights alone, which callbacks are not told of."""
        if trainer.ckpt_path is not None and not hasattr(pl_module, ACCOUNT):
            setattr(pl_module, ACCOUNT, {})

    def _freeze(self, pl_module: LightningModule) -> None:
        """Freeze; what only a forward pass finds is frozen where it is set. A resumed run sets nothing, and says so."""
        with warnings.catch_warnings():
            if not self._resumed:
                warnings.simplefilter("ignore")
            freeze(pl_module, self.initializer)

    def _initialize(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if hasattr(pl_module, ACCOUNT):
            return
        if self.when == "setup" and next(pl_module.parameters(), None) is None:
            raise StructuredInitError(
                "when='setup' needs a model built in its constructor; this one has no parameters yet"
            )
        begin = time.perf_counter()
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed
        seed = trainer.strategy.broadcast(seed)  # ranks may have seeded themselves differently
        in_step = trainer.world_size > 1 and self.when == "fit_start"  # in setup the wrap is still to come
        early, used = self.when == "setup", {}
        if self.initializer.needs_batch:
            batch = training_batch(trainer, pl_module, self.samples, seed, early=early, alone=True)
            used = {"samples": len(batch)}
        else:
            batch = partial(training_batch, trainer, pl_module, self.initializer.samples_to_watch, seed, early=early)
        options = {"broadcast": in_step, "strict": self.strict, "progress": self.progress and trainer.is_global_zero}
        self.report = initialize(pl_module, self.initializer, seed=seed, batch=batch, **options)
        refuse_what_checkpoints_lose(self.report, pl_module)
        rank_zero_info(self.report.summary())
        for warning in self.report.warnings:
            rank_zero_warn(warning)
        account = {  # of what weights_only=True loads
            "initializer": self.report.initializer,
            "seed": self.report.seed,
            "when": self.when,
            "tensors_set": len(self.report.changed),
            "report": self.report.to_dict(),
        }
        setattr(pl_module, ACCOUNT, account | used)
        synchronize_averages(trainer, pl_module)
        self.seconds = time.perf_counter() - begin


def refuse_what_comes_too_early(trainer: Trainer) -> None:
    """Raise one line where something uses or copies the weights before ``on_fit_start``."""
    way_out = "use InitCallback(..., when='setup')"
    for callback in trainer.callbacks:
        if isinstance(callback, (LearningRateFinder, BatchSizeFinder)):
            raise StructuredInitError(
                f"{type(callback).__name__} runs before on_fit_start and would measure other weights: {way_out}"
            )
    for cls in type(trainer.strategy).__mro__:
        if cls.__name__ in TOO_LATE:
            raise StructuredInitError(f"{TOO_LATE[cls.__name__]}: {way_out}")


def refuse_what_checkpoints_lose(report: InitReport, model: LightningModule) -> None:
    """Raise one line where a value was written that a resumed or tested run would not have."""
    saved = {plain_name(name, model) for name in model.state_dict()}
    for entry in report.changed:
        if not saved.intersection(entry.names):
            raise StructuredInitError(
                f"'{entry.names[0]}' is not part of a checkpoint, so its new value would be lost: register it again, "
                "persistent, with register_buffer(name, buffer)"
            )


def publish(account: dict[str, Any], trainer: Trainer) -> None:
    """Write the account for the loggers and into the log folder, or refuse that folder on every rank; all must call."""
    folder = trainer.log_dir or trainer.default_root_dir  # a collective: every rank asks
    for logger in trainer.loggers:
        logger.log_hyperparams({"init": {name: value for name, value in account.items() if name != "report"}})
    problem = None
    if trainer.is_global_zero and not trainer.fast_dev_run:
        try:
            write_json(Path(folder) / REPORT_FILE, account["report"])
        except StructuredInitError as error:
            problem = str(error)
    problem = trainer.strategy.broadcast(problem)  # else the other ranks would wait for rank 0 in their first step
    if problem is not None:
        raise StructuredInitError(problem)


@torch.no_grad()
def synchronize_averages(trainer: Trainer, pl_module: LightningModule) -> None:
    """Copy the new values into averaged models, which were deep-copied before."""
    for callback in trainer.callbacks:
        average = averaged_model(callback)
        if average is not None:
            copies = chain(average.module.parameters(), average.module.buffers())
            for copy, tensor in zip(copies, chain(pl_module.parameters(), pl_module.buffers()), strict=True):
                copy.copy_(tensor)
