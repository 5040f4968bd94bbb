"""AttentionMapCallback: see the attention of a model before and after training, without touching the training."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file, save_file
from torch import Tensor

from callbacks.attention_figures import draw, send
from callbacks.attention_tables import AttentionTables, records_of
from callbacks.diagnostics import is_fatal, note_missing
from callbacks.head_scores import Scores, head_scores, log_scores
from callbacks.probe_batch import ProbeBatch, probe_batch
from structured_init.analysis import NoAttentionError, capture_attention, summarize
from structured_init.analysis.capture import check_layers
from structured_init.arguments import check_flag, check_grid, check_positive, check_whole
from structured_init.errors import StructuredInitError
from structured_init.files import replacing
from structured_init.sites import attention_sites

# Strategies that hold only a part of each weight on a rank: there every rank has to run the probe.
WHO = "AttentionMapCallback"
SHARDED = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"}


class AttentionMapCallback(Callback):
    """Capture attention maps before training, after it, and at chosen epochs, on a few fixed samples.

    Into ``<log_dir>/attention`` (``default_root_dir`` without a logger) go the maps of every layer and head in float32
    (``before.safetensors``, ``after.safetensors``), ``meta.json``, statistics per layer and head (``statistics.json``
    and ``.csv``) and figures, which TensorBoard and W&B get as well. A module whose ``probe_tokens(batch)`` returns the
    strings of every sample's tokens gets a figure with the tokens of the first sample along its axes. Training is
    bit-identical with and without the callback: fused attention stays on, random states, loaders and training flags are
    left as they are.

    Of causal models the statistics have each head's previous-token score, and its induction score where the model takes
    token numbers: on random tokens that come twice, or at the tokens that ``probe_queries(batch)`` of the module marks.
    The best head's go to the loggers as well, as ``val/previous_token_score`` and ``val/induction_score``.

    ``before`` is taken when training starts at step 0. Its path and statistics travel in the checkpoint, so a resumed
    run still compares with it. List the callback after ``WeightAveraging`` for ``after`` to see averaged weights.

    Args:
        samples: size of the probe, from validation data, else from training data.
        every_n_epochs: capture after every n-th epoch too.
        layers: names or patterns of the layers wanted (``"*.blocks.0.attn"``); all where null.
        enabled: false does nothing at all.
        figures: whether to draw.
        seed: of the choice of samples.
        grid: rows and columns of patches, where the model's class does not tell.
        prefix_tokens: class and register tokens before the patches, where the model's class does not tell.
        window: side of the neighbourhood in which the statistics look for a head's impulse, in patches; of a
            sequence, they look at offsets up to half of it.
        max_megabytes: cap on the maps held and written per capture, in MiB; over it fewer samples are kept.
        on_missing: what to do with a model in which no attention is seen: ``"error"``, before training, or ``"skip"``,
            which warns and notes it in ``missing.json`` unless the model was watched and does not attend.

    Attributes:
        records: what is known of each capture (``"before"``, ``"after"``, ``"epoch_0010"``): path, step, epoch,
            samples, layers, statistics and the first sample's tokens, all of plain types.

    Raises:
        StructuredInitError: in ``setup``, a folder that cannot be written to; before training, no attention seen. What
            goes wrong otherwise, such as the maps of a training that diverged, is a warning and an entry in
            ``missing.json``: nothing that looks at a training ends it.
    """

    def __init__(
        self,
        samples: int = 8,
        every_n_epochs: int | None = None,
        layers: list[str] | None = None,
        enabled: bool = True,
        figures: bool = True,
        seed: int = 0,
        grid: list[int] | None = None,
        prefix_tokens: int | None = None,
        window: int = 3,
        max_megabytes: float = 512,
        on_missing: Literal["error", "skip"] = "error",
    ) -> None:
        check_whole(WHO, samples=samples, window=window)
        check_whole(WHO, null=True, every_n_epochs=every_n_epochs)
        check_whole(WHO, least=0, null=True, prefix_tokens=prefix_tokens)
        check_whole(WHO, least=None, seed=seed)
        check_positive(WHO, max_megabytes=max_megabytes)
        check_grid(WHO, grid)
        check_layers(WHO, layers)
        check_flag(WHO, enabled=enabled, figures=figures)
        _check("window", window, window % 2 == 1, "an odd number")
        _check("on_missing", on_missing, on_missing in ("error", "skip"), "'error' or 'skip'")
        self.samples, self.every_n_epochs, self.layers = samples, every_n_epochs, layers
        self.enabled, self.figures, self.seed = enabled, figures, seed
        self.grid, self.prefix_tokens, self.window = grid, prefix_tokens, window
        self.max_megabytes, self.on_missing = max_megabytes, on_missing
        self.records: dict[str, dict[str, Any]] = {}
        self._tables = AttentionTables()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find out before any work is done whether the folder can be written to."""
        if stage == "fit" and self.enabled:
            folder = _folder(trainer)
            if trainer.is_global_zero and not trainer.fast_dev_run:
                _check_writable(folder)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Capture ``before``, in a run that starts at step 0."""
        resumed = trainer.ckpt_path is not None and "before" in self.records
        if self.enabled and trainer.global_step == 0 and not resumed:
            self.records = {}
            self._capture("before", trainer, pl_module)
        elif self.enabled and "before" not in self.records:
            rank_zero_info("attention: this run was resumed from a checkpoint without a capture before training")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Capture at chosen epochs."""
        epoch = trainer.current_epoch + 1
        if self.enabled and self.every_n_epochs is not None and epoch % self.every_n_epochs == 0:
            self._capture(f"epoch_{epoch:04d}", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Capture ``after`` and draw."""
        if self.enabled:
            self._capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the records as texts, which load with ``weights_only=True``."""
        return {"records": self._tables.state(self.records)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the records of the run that is resumed."""
        self.records = records_of(state_dict["records"])

    def _capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> None:
        """Capture where the weights are, write on rank zero, and tell every rank how it went."""
        folder = _folder(trainer)
        record, failure = None, None
        try:
            if trainer.is_global_zero or is_sharded(trainer):
                probe, maps, scores = self._maps(trainer, pl_module)
            if trainer.is_global_zero:
                record = self._record(phase, folder, trainer, pl_module, probe, maps, scores)
                if not trainer.fast_dev_run:
                    self._write(phase, folder, trainer, record, maps)
                    if trainer.global_step not in [known["step"] for known in self.records.values()]:
                        log_scores(trainer.loggers, scores, probe.part, trainer.global_step, trainer.current_epoch)
        except Exception as error:
            record, failure = None, error
        failure, record = trainer.strategy.broadcast((failure, record))
        if record is not None:
            self.records[phase] = record
        if isinstance(failure, NoAttentionError) and self.on_missing == "skip":
            if failure.absent:  # nothing is missing of a model that does not attend
                rank_zero_info(f"attention: {failure}")
            else:
                note_missing(trainer, "attention", phase, failure)
        elif is_fatal(failure, phase) and isinstance(failure, NoAttentionError):
            raise NoAttentionError(f"{failure}; {WHO}(on_missing='skip') trains without the maps", failure.absent)
        elif is_fatal(failure, phase):
            raise failure
        elif failure is not None:
            note_missing(trainer, "attention", phase, failure)

    def _maps(self, trainer: Trainer, pl_module: LightningModule) -> tuple[ProbeBatch, dict[str, Tensor], Scores]:
        probe = probe_batch(trainer, pl_module, self.samples, self.seed)
        # FSDP1 gathers the weights of the root in the wrapper's forward, not in the module's.
        model = trainer.strategy.model if type(trainer.strategy).__name__ == "FSDPStrategy" else pl_module
        capture = partial(
            capture_attention,
            model,
            layers=self.layers,
            max_samples=self.samples,
            max_megabytes=self.max_megabytes,
            seed=self.seed,
        )
        with trainer.precision_plugin.forward_context():
            maps = capture(*probe.inputs, **probe.named)
            scores = head_scores(maps, probe, capture, self.seed)
        return probe, maps, scores

    def _record(
        self,
        phase: str,
        folder: Path,
        trainer: Trainer,
        pl_module: LightningModule,
        probe: ProbeBatch,
        maps: dict[str, Tensor],
        scores: Scores,
    ) -> dict[str, Any]:
        """Describe a capture in plain types, statistics included."""
        places = self._places(pl_module, maps)
        return {
            "path": str((folder / f"{phase}.safetensors").absolute()),
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "data": probe.part,
            "indices": probe.indices,
            **({"tokens": probe.tokens[0]} if probe.tokens else {}),
            "seed": self.seed,
            "layers": {name: {"shape": list(layer.shape), **places[name]} for name, layer in maps.items()},
            "statistics": {
                name: {**summarize(layer, window=self.window, **places[name]), **scores.get(name, {})}
                for name, layer in maps.items()
                # Not of cross-attention, nor of a map of which a host has mixed the heads, which is no distribution.
                if layer.shape[-1] == layer.shape[-2] and not ((layer < 0).any() or (layer.sum(-1) > 1.01).any())
            },
        }

    def _places(self, pl_module: LightningModule, maps: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Return grid and prefix tokens of every layer, as far as they are known and fit."""
        sites = {site.name: site for site in attention_sites(pl_module)}
        places = {}
        for name, layer in maps.items():
            grid, prefix = self.grid, self.prefix_tokens or 0
            site = _around(name.partition(":")[0], sites)
            if grid is None and site is not None and site.grid is not None:
                prefix = site.prefix_tokens if self.prefix_tokens is None else prefix
                fits = site.grid[0] * site.grid[1] + prefix == layer.shape[-1]
                grid = list(site.grid) if fits else None
            places[name] = {"grid": grid, "prefix_tokens": prefix}
        return places

    def _write(
        self, phase: str, folder: Path, trainer: Trainer, record: dict[str, Any], maps: dict[str, Tensor]
    ) -> None:
        with replacing(record["path"]) as temporary:
            save_file({name: layer.contiguous() for name, layer in maps.items()}, temporary)
        records = {**self.records, phase: record}
        self._tables.write(folder, _title(trainer), records)
        if phase == "after" and self.figures:
            shown = {name: _load(records[name]["path"]) for name in ("before",) if name in records}
            shown = {name: layers for name, layers in shown.items() if layers}
            send(trainer.loggers, draw(folder, {**shown, "after": maps}, records), trainer.global_step)


def _folder(trainer: Trainer) -> Path:
    """Return where everything goes. A collective: every rank asks."""
    return Path(trainer.log_dir or trainer.default_root_dir) / "attention"


def is_sharded(trainer: Trainer) -> bool:
    """Tell whether no rank holds all weights."""
    return any(cls.__name__ in SHARDED for cls in type(trainer.strategy).__mro__)


def _check(name: str, value: object, valid: bool, what: str) -> None:
    if not valid:
        raise StructuredInitError(f"{WHO}: {name} must be {what}, got {value!r}")


def _check_writable(folder: Path) -> None:
    """Try the folder, or what exists of it, and leave nothing behind: loggers warn of folders that are not new."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise StructuredInitError(f"attention maps cannot be written to '{folder}': {reason}") from error


def _around(name: str, sites: dict[str, Any]) -> Any:
    """Return the site of the innermost module around ``name``."""
    while name and name not in sites:
        name = name.rpartition(".")[0]
    return sites.get(name)


def _load(path: str) -> dict[str, Tensor]:
    return load_file(path) if Path(path).is_file() else {}


def _title(trainer: Trainer) -> str:
    network = getattr(trainer.lightning_module, "network", trainer.lightning_module)
    return type(network).__name__
