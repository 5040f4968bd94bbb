"""AttentionMapCallback: see the attention of a model before and after training, without touching the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from callbacks.before_after import BeforeAndAfter, is_sharded, note_missing, runnable, show_figures
from callbacks.figures import depth_figure, map_figure, profile_figure, token_figure, zoom_figure
from callbacks.head_scores import Scores, head_scores, log_scores
from callbacks.init import InitCallback
from callbacks.samples import ProbeBatch, probe_batch
from structured_init import Impulse
from structured_init.analysis import NoAttentionError, capture_attention, offset_profile, summarize, to_csv
from structured_init.analysis.capture import check_layers
from structured_init.analysis.statistics import mean_map
from structured_init.hosts import attention_sites
from structured_init.hosts.positions import enclosing, sought_position_sites, token_layouts
from structured_init.initializer import parts_of
from structured_init.inputs import as_batch
from structured_init.util.arguments import check_choice, check_grid, check_positive, check_whole
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import write_json, write_text
from structured_init.weights import Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHO = "AttentionMapCallback"
Maps = dict[str, Tensor]  # layer → maps (samples, heads, queries, keys)
Seen = tuple[ProbeBatch, Maps, Scores]


class AttentionMapCallback(BeforeAndAfter):
    """Capture attention maps before training, after it, and at chosen epochs, on a few fixed samples.

    Into ``<log_dir>/attention`` (``default_root_dir`` without a logger) go the maps of every layer and head in float32
    (``before.safetensors``, ``after.safetensors``), ``meta.json``, statistics per layer and head (``statistics.json``
    and ``.csv``) and figures, which TensorBoard and W&B get as well. A module whose ``probe_tokens(batch)`` returns the
    strings of every sample's tokens gets a figure with the tokens of the first sample along its axes. Training is
    bit-identical with and without the callback: fused attention is off during a capture alone, and random states,
    loaders and training flags are left as they are.

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
        max_megabytes: cap on the maps held and written per capture, in MiB; over it fewer samples are kept.
        on_missing: what to do with a model in which no attention is seen: ``"error"``, before training, or ``"skip"``,
            which warns and notes it in ``missing.json`` unless the model was watched and does not attend.

    Attributes:
        records: what is known of each capture (``"before"``, ``"after"``, ``"epoch_0010"``): path, step, epoch,
            samples, layers, statistics and the first sample's tokens, all of plain types.

    Raises:
        StructuredInitError: before training, no attention seen; layers, a grid or samples that are not there, or a
            folder that cannot be written to. What goes wrong otherwise, such as the maps of a training that diverged,
            is a warning and an entry in ``missing.json``: nothing that looks at a training ends it.
    """

    what = "attention"

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
        max_megabytes: float = 512,
        on_missing: Literal["error", "skip"] = "error",
    ) -> None:
        check_whole(WHO, samples=samples)
        check_whole(WHO, null=True, every_n_epochs=every_n_epochs)
        check_whole(WHO, least=0, null=True, prefix_tokens=prefix_tokens)
        check_positive(WHO, max_megabytes=max_megabytes)
        check_grid(WHO, grid)
        check_layers(WHO, layers)
        check_choice(WHO, on_missing=(on_missing, Literal["error", "skip"]))
        super().__init__(enabled)
        self.samples, self.every_n_epochs, self.layers = samples, every_n_epochs, layers
        self.figures, self.seed = figures, seed
        self.grid, self.prefix_tokens, self.max_megabytes = grid, prefix_tokens, max_megabytes
        self.on_missing = on_missing

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if self.enabled and self.every_n_epochs is not None and epoch % self.every_n_epochs == 0:
            self.capture(f"epoch_{epoch:04d}", trainer, pl_module)

    def look(self, trainer: Trainer, pl_module: LightningModule) -> Seen:
        probe = probe_batch(trainer, pl_module, self.samples, self.seed)
        options = {"max_samples": self.samples, "max_megabytes": self.max_megabytes, "seed": self.seed}
        capture = partial(capture_attention, runnable(trainer, pl_module), layers=self.layers, **options)
        with trainer.precision_plugin.forward_context():
            maps = capture(probe.inputs, **probe.named)
            scores = head_scores(maps, probe, capture, self.seed)
        return probe, maps, scores

    def not_seen(self, phase: str, trainer: Trainer, folder: Path, error: StructuredInitError) -> None:
        skips = isinstance(error, NoAttentionError) and self.on_missing == "skip"
        if skips and error.absent:  # nothing is missing of a model that does not attend
            network = getattr(trainer.lightning_module, "network", trainer.lightning_module)
            super().not_seen(phase, trainer, folder, StructuredInitError(f"none found in {type(network).__name__}"))
        elif skips or phase != "before":
            note_missing(trainer, folder, self.what, phase, error)
        elif isinstance(error, NoAttentionError):
            raise NoAttentionError(f"{error}; {WHO}(on_missing='skip') trains without the maps", error.absent)
        else:
            raise error

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: Seen) -> dict[str, Any]:
        """Write maps, tables and figures, and return what is known of the capture in plain types."""
        probe, maps, scores = seen
        places = self._places(trainer, probe, maps)
        written = [each.initializer for each in trainer.callbacks if isinstance(each, InitCallback)]
        window = widest_kernel(written)
        statistics = {}
        for name, layer in maps.items():
            # Not of cross-attention, nor of a map of which a host has mixed the heads, which is no distribution.
            if layer.shape[-1] == layer.shape[-2] and not ((layer < 0).any() or (layer.sum(-1) > 1.01).any()):
                statistics[name] = {**summarize(layer, window=window, **places[name]), **scores.get(name, {})}
        record = {
            **self.save(phase, folder, maps),
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "data": probe.part,
            "indices": probe.indices,
            "tokens": probe.tokens[0] if probe.tokens else [],
            "seed": self.seed,
            "layers": {name: {"shape": list(layer.shape), **places[name]} for name, layer in maps.items()},
            "statistics": statistics,
        }
        records = {**self.records, phase: record}
        write_tables(folder, trainer.lightning_module, records)
        if trainer.global_step not in [known["step"] for known in self.records.values()]:
            log_scores(trainer.loggers, scores, probe.part, trainer.global_step, trainer.current_epoch)
        if phase == "after" and self.figures:
            show_figures(trainer, folder, draw({**self.read_before(maps), "after": maps}, records))
        return record

    def _places(self, trainer: Trainer, probe: ProbeBatch, maps: Maps) -> dict[str, dict[str, Any]]:
        """Return grid and prefix tokens of every layer, as far as they are given, known or seen of images, and fit."""
        known = self._known(trainer, probe, maps) if self.grid is None else {}
        places = {}
        for name, layer in maps.items():
            grid, prefix = known.get(name, (self.grid, 0))
            if self.prefix_tokens is not None:
                prefix = self.prefix_tokens
            fits = grid is not None and prod(grid) + prefix == layer.shape[-1]
            places[name] = {"grid": list(grid) if fits else None, "prefix_tokens": prefix}
        if not any(place["grid"] for place in places.values()):
            if self.grid is not None:
                raise StructuredInitError(f"{WHO}: a grid of {self.grid} fits no layer: give grid and prefix_tokens")
            if has_images(probe):
                rank_zero_info("attention: no grid is known, so tokens count as a row: give grid= and prefix_tokens=")
        return places

    def _known(self, trainer: Trainer, probe: ProbeBatch, maps: Maps) -> dict[str, tuple[Sequence[int], int]]:
        """Return grid and prefix tokens of the layers of which a layout or a forward pass tells."""
        weights = self._layouts(trainer, probe)
        sites, tokens = {site.name: site for site in attention_sites(weights)}, token_layouts(weights)
        known = {}
        for name in maps:
            module = name.partition(":")[0]
            # The module that attends may be the one that has the positions.
            layout = enclosing(sites, module) or enclosing(tokens, module)
            if layout is not None and layout.grid is not None:
                known[name] = layout.grid, layout.prefix_tokens
        return known

    def _layouts(self, trainer: Trainer, probe: ProbeBatch) -> Weights:
        """Return the model, run on two images where nothing else tells its grid."""
        weights = Weights(trainer.lightning_module)
        if not has_images(probe) or is_sharded(trainer) or token_layouts(weights):
            return weights
        batch = as_batch(trainer.lightning_module, (probe.inputs, probe.named))
        seen = Weights(trainer.lightning_module, batch=batch)
        with suppress(StructuredInitError), trainer.precision_plugin.forward_context():
            sought_position_sites(seen)
            return seen
        return weights


def has_images(probe: ProbeBatch) -> bool:
    """Tell whether a probe has images or videos."""
    return any(getattr(each, "ndim", 0) in (4, 5) for each in (*probe.inputs, *probe.named.values()))


def widest_kernel(initializers: Iterable[object]) -> int:
    """Return the side of the largest kernel that initializers write into attention, 3 at least."""
    sizes = [3]
    for initializer in initializers:
        sizes += [part.kernel_size for part in parts_of(initializer) if isinstance(part, Impulse)]
    return max(sizes)


def write_tables(folder: Path, module: LightningModule, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``statistics.json``, ``statistics.csv`` and ``meta.json`` of all captures of a training."""
    network = getattr(module, "network", module)
    statistics, captures = {}, {}
    for phase, record in records.items():
        captures[phase] = dict(record)
        statistics[phase] = captures[phase].pop("statistics")
    write_json(folder / "statistics.json", statistics)
    write_text(folder / "statistics.csv", to_csv(statistics))
    write_json(folder / "meta.json", {"model": type(network).__name__, "captures": captures})


def draw(maps: Mapping[str, Maps], records: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Draw maps, their corner, offset profiles, statistics over depth, and one text with its tokens."""
    captions = {phase: phase.replace("_", " ") for phase in records}
    captions |= {"before": "before training", "after": f"after training ({records['after']['step']} steps)"}
    common = set.intersection(*map(set, maps.values()))
    names = [name for name, layer in maps["after"].items() if name in common and layer.shape[-1] == layer.shape[-2]]
    if not names:
        return {}

    def of_each(one: Callable[[str, Tensor], Tensor], names: Iterable[str]) -> dict[str, Maps]:
        return {captions[phase]: {name: one(name, layers[name]) for name in names} for phase, layers in maps.items()}

    figures = {"maps": map_figure(of_each(lambda _, layer: mean_map(layer), names))}
    statistics = {captions[phase]: record["statistics"] for phase, record in records.items() if record["statistics"]}
    if statistics:
        figures["statistics"] = depth_figure(statistics)
    places = {name: (place["grid"], place["prefix_tokens"]) for name, place in records["after"]["layers"].items()}
    on_grid = [name for name in names if places[name][0]]
    if on_grid:
        figures["offset_profile"] = profile_figure(
            of_each(lambda name, layer: offset_profile(layer, *places[name]), on_grid)
        )
        alike = [name for name in on_grid if places[name] == places[on_grid[0]]]
        grid, prefix_tokens = places[on_grid[0]]
        figures["zoom"] = zoom_figure(of_each(lambda _, layer: mean_map(layer), alike), grid[1], prefix_tokens)
    tokens = records["after"]["tokens"]
    long_enough = [name for name in names if maps["after"][name].shape[-1] >= len(tokens)]  # others are pooled
    if tokens and long_enough:
        figures["tokens"] = token_figure(of_each(lambda _, layer: layer[0], long_enough), tokens)
    return figures
