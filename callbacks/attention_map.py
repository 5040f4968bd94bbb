"""AttentionMapCallback: see the attention of a model before and after training, without touching the training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import save_file
from torch import Tensor

from callbacks.before_after import Drawn, is_fatal, is_sharded, note_missing, runnable, send
from callbacks.figures import depth_figure, map_figure, profile_figure, save_figure, token_figure, zoom_figure
from callbacks.head_scores import Scores, head_scores, log_scores
from callbacks.init import InitCallback
from callbacks.samples import ProbeBatch, probe_batch
from structured_init import Impulse
from structured_init.analysis import NoAttentionError, capture_attention, offset_profile, summarize, to_csv
from structured_init.analysis.capture import check_layers, first_samples
from structured_init.analysis.statistics import mean_map
from structured_init.arguments import check_grid, check_positive, check_whole
from structured_init.errors import StructuredInitError
from structured_init.files import read_tensors, replacing, write_text
from structured_init.hosts import attention_sites
from structured_init.hosts.attention import enclosing
from structured_init.hosts.positions import sought_position_sites, token_layouts
from structured_init.overlay import Weights
from structured_init.report import parts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHO = "AttentionMapCallback"
Record = Mapping[str, Any]  # what is known of a capture; see ``AttentionMapCallback.records``


class AttentionMapCallback(Callback):
    """Capture attention maps before training, after it, and at chosen epochs, on a few fixed samples.

    Into ``<log_dir>/attention`` (``default_root_dir`` without a logger) go the maps of every layer and head in float32
    (``before.safetensors``, ``after.safetensors``), ``meta.json``, statistics per layer and head (``statistics.json``
    and ``.csv``) and figures, which TensorBoard and W&B get as well. A module whose ``probe_tokens(batch)`` returns the
    strings of every sample's tokens gets a figure with the tokens of the first sample along its axes. Training is
    bit-identical with and without the callback: fused attention stays on, random states, loaders and training flags are
    left as they are.

    Of cross-attention maps alone are kept: statistics and figures are of tokens that look at each other. Tokens that a
    mask hides from every query are padding: maps hold them, statistics and mean maps leave them out. Of
    causal models the statistics have each head's previous-token score, and its induction score where the model takes
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
        grid: rows and columns of patches, where neither the model's class nor a forward pass on images tells.
        prefix_tokens: class and register tokens before the patches, likewise.
        window: side of the neighbourhood in which the statistics look for a head's impulse, in patches, or that of
            the kernel that the run's ``Impulse`` writes, if it is larger; of a sequence, they look at offsets up to
            half of it.
        max_megabytes: cap on the maps held and written per capture, in MiB; over it fewer samples are kept.
        on_missing: what to do with a model in which no attention is seen: ``"error"``, before training, or ``"skip"``,
            which warns and notes it in ``missing.json`` unless the model was watched and does not attend.

    Attributes:
        records: what is known of each capture (``"before"``, ``"after"``, ``"epoch_0010"``): path, step, epoch,
            samples, layers, statistics and the first sample's tokens, all of plain types.

    Raises:
        StructuredInitError: before training, no attention seen, or a folder that cannot be written to. What goes wrong
            otherwise, such as the maps of a training that diverged, is a warning and an entry in ``missing.json``:
            nothing that looks at a training ends it.
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
        check_positive(WHO, max_megabytes=max_megabytes)
        check_grid(WHO, grid)
        check_layers(WHO, layers)
        if window % 2 == 0:
            raise StructuredInitError(f"{WHO}: window must be an odd number, got {window!r}")
        if on_missing not in ("error", "skip"):
            raise StructuredInitError(f"{WHO}: on_missing must be 'error' or 'skip', got {on_missing!r}")
        self.samples, self.every_n_epochs, self.layers = samples, every_n_epochs, layers
        self.enabled, self.figures, self.seed = enabled, figures, seed
        self.grid, self.prefix_tokens, self.window = grid, prefix_tokens, window
        self.max_megabytes, self.on_missing = max_megabytes, on_missing
        self.records: dict[str, dict[str, Any]] = {}
        self._tables = AttentionTables()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Capture ``before``, in a run that starts at step 0."""
        resumed = trainer.ckpt_path is not None and "before" in self.records
        if self.enabled and trainer.global_step == 0 and not resumed:
            self.records = {}
            self._capture("before", trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if self.enabled and self.every_n_epochs is not None and epoch % self.every_n_epochs == 0:
            self._capture(f"epoch_{epoch:04d}", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.enabled:
            self._capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the records as texts, which load with ``weights_only=True``."""
        return {"records": self._tables.state(self.records)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.records = {name: json.loads(known) for name, known in state_dict["records"].items()}

    def _capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> None:
        """Capture where the weights are, write on rank zero, and tell every rank how it went."""
        folder = Path(trainer.log_dir or trainer.default_root_dir) / "attention"  # a collective: every rank asks
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
            if failure.absent and phase == "before":  # nothing is missing of a model that does not attend
                network = getattr(pl_module, "network", pl_module)
                rank_zero_info(f"attention: none found in {type(network).__name__}")
            elif not failure.absent:
                note_missing(trainer, "attention", phase, failure)
        elif is_fatal(failure, phase) and isinstance(failure, NoAttentionError):
            raise NoAttentionError(f"{failure}; {WHO}(on_missing='skip') trains without the maps", failure.absent)
        elif is_fatal(failure, phase):
            raise failure
        elif failure is not None:
            note_missing(trainer, "attention", phase, failure)

    def _maps(self, trainer: Trainer, pl_module: LightningModule) -> tuple[ProbeBatch, dict[str, Tensor], Scores]:
        probe = probe_batch(trainer, pl_module, self.samples, self.seed)
        options = {"max_samples": self.samples, "max_megabytes": self.max_megabytes, "seed": self.seed}
        capture = partial(capture_attention, runnable(trainer, pl_module), layers=self.layers, **options)
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
        places = self._places(trainer, pl_module, probe, maps)
        written = (each.initializer for each in trainer.callbacks if isinstance(each, InitCallback))
        window = max(self.window, widest_kernel(written))
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
                name: {**summarize(layer, window=window, **places[name]), **scores.get(name, {})}
                for name, layer in maps.items()
                # Not of cross-attention, nor of a map of which a host has mixed the heads, which is no distribution.
                if layer.shape[-1] == layer.shape[-2] and not ((layer < 0).any() or (layer.sum(-1) > 1.01).any())
            },
        }

    def _places(
        self, trainer: Trainer, pl_module: LightningModule, probe: ProbeBatch, maps: dict[str, Tensor]
    ) -> dict[str, dict[str, Any]]:
        """Return grid and prefix tokens of every layer, as far as they are known, or seen of images, and fit."""
        given, named = first_samples((probe.inputs, probe.named), 2)
        images = any(isinstance(each, Tensor) and each.ndim in (4, 5) for each in (*given, *named.values()))
        weights = Weights(pl_module)
        sought = images and self.grid is None and not is_sharded(trainer) and not (given and named)
        if sought and not token_layouts(weights):
            seen = Weights(pl_module, batch=given or named)
            with suppress(StructuredInitError), trainer.precision_plugin.forward_context():
                sought_position_sites(seen)
                weights = seen
        sites, tokens = {site.name: site for site in attention_sites(weights)}, token_layouts(weights)
        places, rows, length = {}, [], math.prod(self.grid or []) + (self.prefix_tokens or 0)
        others = [name for name, layer in maps.items() if self.grid and layer.shape[-1] != length]
        others = others if len(others) < len(maps) else []  # what it does not fit at all is refused
        for name, layer in maps.items():
            grid, prefix = None if name in others else self.grid, self.prefix_tokens or 0
            around = name.partition(":")[0]
            while around and around not in sites:
                around = around.rpartition(".")[0]
            # The module that attends may itself be the one that has the positions.
            known = sites.get(around) or enclosing(tokens, name.partition(":")[0])
            if grid is None and known is not None and known.grid is not None:
                prefix = known.prefix_tokens if self.prefix_tokens is None else prefix
                fits = known.grid[0] * known.grid[1] + prefix == layer.shape[-1]
                grid = list(known.grid) if fits else None
            places[name] = {"grid": grid, "prefix_tokens": prefix}
            if grid is None and layer.shape[-1] == layer.shape[-2]:
                rows.append(name)
        if any(place["grid"] for place in places.values()):  # then a text or dates beside them may be known to be a row
            rows = [name for name in rows if (around := enclosing(tokens, name)) is None or around.grid]
        if images and self.grid is None and rows:
            rank_zero_info(
                f"attention: no grid is known of {', '.join(rows)}, so their tokens count as a row: give grid= and"
                " prefix_tokens="
            )
        return places

    def _write(
        self, phase: str, folder: Path, trainer: Trainer, record: dict[str, Any], maps: dict[str, Tensor]
    ) -> None:
        with replacing(record["path"]) as temporary:
            save_file({name: layer.contiguous() for name, layer in maps.items()}, temporary)
        records = {**self.records, phase: record}
        network = getattr(trainer.lightning_module, "network", trainer.lightning_module)
        self._tables.write(folder, type(network).__name__, records)
        if phase == "after" and self.figures:
            path = Path(records["before"]["path"]) if "before" in records else None
            before = read_tensors(path, maps) if path is not None and path.is_file() else {}
            shown = {"before": before, "after": maps} if before else {"after": maps}
            send(trainer.loggers, draw(folder, shown, records), trainer.global_step)


def draw(folder: Path, maps: Mapping[str, Mapping[str, Tensor]], records: Mapping[str, Mapping[str, Any]]) -> Drawn:
    """Draw and save maps, their corner, offset profiles, statistics over depth, and one text with its tokens."""
    captions = {moment: moment.replace("_", " ") for moment in records}
    captions |= {"before": "before training", "after": f"after training ({records['after']['step']} steps)"}
    square = {
        captions[moment]: {name: layer for name, layer in layers.items() if layer.shape[-1] == layer.shape[-2]}
        for moment, layers in maps.items()
    }
    square = {caption: layers for caption, layers in square.items() if layers}
    if not square:
        return {}
    places = records["after"]["layers"]
    mean = {caption: {n: mean_map(layer) for n, layer in layers.items()} for caption, layers in square.items()}
    statistics = {captions[moment]: record["statistics"] for moment, record in records.items() if record["statistics"]}
    figures = {"maps": map_figure(mean)} | ({"statistics": depth_figure(statistics)} if statistics else {})
    on_grid = {
        caption: {n: layer for n, layer in layers.items() if n in places and places[n]["grid"]}
        for caption, layers in square.items()
    }
    if all(on_grid.values()):
        profile = lambda n, layer: offset_profile(layer, places[n]["grid"], places[n]["prefix_tokens"])  # noqa: E731
        profiles = {caption: {n: profile(n, each) for n, each in of.items()} for caption, of in on_grid.items()}
        figures["offset_profile"] = profile_figure(profiles)
        figures["zoom"] = _zoom(on_grid, places)
    tokens = records["after"].get("tokens") or []
    first = {
        caption: {n: layer[0] for n, layer in layers.items() if layer.shape[-1] >= len(tokens)}  # others are pooled
        for caption, layers in square.items()
    }
    if tokens and all(first.values()):
        figures["tokens"] = token_figure(first, tokens)
    drawn = {name: (figure, folder / f"{name}.png") for name, figure in figures.items()}
    for figure, path in drawn.values():
        save_figure(figure, path)
    return drawn


def _zoom(maps: Mapping[str, Mapping[str, Tensor]], places: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the corner of all layers that have the first layer's grid."""
    first = next(iter(next(iter(maps.values()))))
    place = (places[first]["grid"], places[first]["prefix_tokens"])
    alike = {
        moment: {n: mean_map(m) for n, m in layers.items() if (places[n]["grid"], places[n]["prefix_tokens"]) == place}
        for moment, layers in maps.items()
    }
    alike = {moment: layers for moment, layers in alike.items() if layers}
    return zoom_figure(alike, columns=place[0][1], prefix_tokens=place[1])


class _Encoded(NamedTuple):
    """A capture as text."""

    record: Record
    statistics: str  # its entry in statistics.json
    described: str  # its entry in meta.json
    rows: str  # its table in CSV, with the header
    state: str  # all of it, for a checkpoint


class AttentionTables:
    """``statistics.json``, ``statistics.csv`` and ``meta.json`` of a training, which hold all its captures.

    They are written anew after each capture, so that they are whole under their names at any time. A training may have
    hundreds of captures, and to encode them costs fifty times what it costs to write them: so none is encoded twice.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Encoded] = {}

    def write(self, folder: Path, model: str, records: Mapping[str, Record]) -> None:
        """Write the three files."""
        encoded = self._encode(records)
        captures = _object(each.described for each in encoded)
        write_text(folder / "statistics.json", _object(each.statistics for each in encoded) + "\n")
        write_text(folder / "meta.json", _object([_entry("model", model), _inside("captures", captures)]) + "\n")
        tables = [each.rows.partition("\n") for each in encoded]
        if len({header for header, *_ in tables}) == 1:
            text = f"{tables[0][0]}\n" + "".join(rows for *_, rows in tables)
        else:  # a column came with a later capture
            text = to_csv({name: record["statistics"] for name, record in records.items()})
        write_text(folder / "statistics.csv", text)

    def state(self, records: Mapping[str, Record]) -> dict[str, str]:
        """Return captures as a checkpoint holds them: a text each, since it would ask about every number of a list."""
        return {name: each.state for name, each in zip(records, self._encode(records), strict=True)}

    def _encode(self, records: Mapping[str, Record]) -> list[_Encoded]:
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name].record is record else _encode(name, record)
            for name, record in records.items()
        }
        return list(self._known.values())


def _encode(name: str, record: Record) -> _Encoded:
    statistics = record["statistics"]
    described = {key: value for key, value in record.items() if key != "statistics"}
    return _Encoded(
        record, _entry(name, statistics), _entry(name, described), to_csv({name: statistics}), json.dumps(record)
    )


# These three write what `write_json` writes, from parts.
def _entry(name: str, content: Any) -> str:
    return _inside(name, json.dumps(content, indent=1, ensure_ascii=False))


def _inside(name: str, text: str) -> str:
    indented = text.replace("\n", "\n ")  # no text of JSON has a line break of its own
    return f"\n {json.dumps(name, ensure_ascii=False)}: {indented}"


def _object(entries: Iterable[str]) -> str:
    return "{" + ",".join(entries) + "\n}"


def widest_kernel(initializers: Iterable[object]) -> int:
    """Return the side of the largest kernel that initializers write into attention; 0 without one."""
    parts = (part for initializer in initializers for part in parts_of(initializer))
    return max((part.kernel_size for part in parts if isinstance(part, Impulse)), default=0)
