"""What initialization a model really has: of every parameter, through depth, and what is suspicious about it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.audit import findings
from structured_init.analysis.audit.depth import (
    BlockScale,
    Depth,
    aligned,
    half_lives_on,
    in_tokens,
    measure_depth,
    product_diagonals,
)
from structured_init.analysis.audit.distribution import ALPHA, FEWEST, STANDARD_ERRORS
from structured_init.analysis.audit.findings import Finding
from structured_init.analysis.audit.records import Record, describe_kind, label, records
from structured_init.analysis.audit.references import Reference, num_layers
from structured_init.analysis.blocks import blocks_of
from structured_init.analysis.capture import cut_samples, first_samples
from structured_init.hosts.layout import Projection
from structured_init.hosts.state_space import state_space_sites
from structured_init.inputs import Inputs, as_inputs, evaluating, explain_failure, host_inputs
from structured_init.report import trained_norm
from structured_init.storage import refuse_unreadable
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError, missing_extra
from structured_init.util.names import folded_name, wrapped
from structured_init.weights import Weights

if TYPE_CHECKING:
    from pandas import DataFrame

RANDOM = ("normal", "truncated normal", "uniform", "unclear", "other")
CLOSE = 0.05  # relative difference of scales within which blocks without a reference are alike
NO_INPUTS = "no batch was given and the host names none: activations, gradients and the first loss are left out"


def audit(
    model: nn.Module, batch: Any = None, *, classes: int | None = None, max_samples: int | None = 8, seed: int = 0
) -> Audit:
    """Say what initialization a model really has, from its numbers alone. The model is left as it was.

    Args:
        model: any module.
        batch: what it is called with: a tensor, a tuple of arguments, or a dictionary of named ones. Without it, what
            the host library names: ``dummy_inputs`` of transformers, the image size of timm. Where there is neither,
            activations and gradients are left out, and ``notes`` says so.
        classes: number of classes or words, for the first loss, where the model does not say it: the length of the
            last axis of the logits, or of axis 1 as in segmentation.
        max_samples: at most so many samples of the batch, the first along axis 0; all when None.
        seed: of the draws of such inputs, and of the direction in which the output is differentiated.

    Raises:
        StructuredInitError: the model has no parameters, or none with memory; one is lazy; it fails on the batch.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from structured_init.analysis import audit
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, batch_first=True), num_layers=2)
        >>> print(str(audit(encoder, torch.randn(2, 8, 32)).findings[0]).partition(" (")[0])
        problem: 6 parameters are equal in layers.0–1
    """
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"audit needs a model, an nn.Module, got {type(model).__name__}")
    check_whole("audit", least=2, null=True, classes=classes)
    check_whole("audit", null=True, max_samples=max_samples)
    refuse_unreadable(model)
    parameters = list(model.parameters())
    if not parameters:
        raise StructuredInitError(f"{type(model).__name__} has no parameters: there is nothing to audit")
    if all(parameter.is_meta for parameter in parameters):
        raise StructuredInitError(f"{type(model).__name__} is on the meta device: its parameters have no values yet")
    with evaluating(model):
        return _audit(model, batch, classes, max_samples, seed)


def _audit(model: nn.Module, batch: Any, classes: int | None, max_samples: int | None, seed: int) -> Audit:
    blocks = blocks_of(model)
    inputs, cut = (None, "") if batch is None else cut_samples(as_inputs(batch), max_samples)
    with explain_failure(model, cut=cut):
        depth, why = _depth(model, inputs, blocks, seed, classes)
    looped = dict.fromkeys(each.name for each in depth.blocks if each.name not in blocks)
    weights = Weights(model)
    found, trained = records(model, list(looped or blocks)), trained_norm(weights)
    if trained:  # a normal scale that fits what was trained fits by chance
        found = [replace(each, references=tuple(filter(_not_normal, each.references))) for each in found]
    unread = [each for each in found if each.distribution.kind == "unreadable"]
    notes = [f"{each.name}: its {each.dtype} numbers cannot be read" for each in unread]
    given = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if math.isinf(depth.largest[1]) and any(bool(leaf.to_dense().isnan().any()) for leaf in given):
        raise StructuredInitError("audit: the batch holds NaN, and so does what the model gives")
    # Watched with two samples, for the pass holds all activations, or with all.
    some = [] if inputs is None else [first_samples(inputs, 2), inputs]
    products, without = product_diagonals(model, *(named or args for args, named in some))
    notes += [*without, *why, *_delayed(found, depth)]
    unused = [each.name for each in found if depth.gradients and each.trainable and each.name not in depth.gradients]
    if unused:
        notes.append(f"{findings.first_names(unused)}: no gradient on this batch")
    if depth.gradients and not findings.stacks(depth.blocks):
        notes.append(findings.NO_STACK)
    if depth.loss is None and depth.gradients:
        notes.append(f"loss left out: {depth.doubt}")
    values = {weights.names(parameter)[0]: parameter for parameter in model.parameters()}
    scans = state_space_sites(weights)
    fused = [site for site in scans if isinstance(site.layout.dt, Projection) and not site.dt_weight.any()]
    without_input = {weights.names(site.layout.dt.weight)[0]: site.num_heads for site in fused}
    said = [
        *findings.never_initialized(found),
        *findings.copied([replace(x, trainable=x.trainable and x.name not in unused) for x in found], values),
        *findings.parts(found, values, without_input),
        *findings.without_gradient(depth),
        *([] if depth.blocks else findings.zero_products(products)),
        *([] if trained else [*findings.first_loss(depth), *findings.depth_scale(found, num_layers(model))]),
        *findings.through_depth(depth.blocks),
        *findings.overflow(depth, found),
        *findings.too_large(found),
        *findings.too_small(found),
        *findings.steps(found, values),
        *findings.not_drawn(found, trained),
    ]
    said.sort(key=lambda finding: not finding.problem)
    lives = {site.name: site.half_life for site in scans}
    on_batch = {} if inputs is None or not scans else half_lives_on(model, inputs, seed)
    scales = depth.blocks, products, depth.gradients, notes, depth.loss
    return Audit(type(model).__name__, found, said, *scales, lives, on_batch, depth.doubt if depth.loss else "")


@dataclass
class Audit:
    """What initialization a model has.

    Attributes:
        model: its class.
        records: every parameter, in the order of the model; tied ones have one record.
        findings: what is suspicious, problems first.
        blocks: scale of activations and gradients after every block; empty without a batch.
        products: attention layer → diagonals of its products.
        gradients: parameter → root mean square of its gradient; empty without a batch.
        notes: what was left out or comes later, and why.
        loss: first loss in nats, as the cross-entropy that uniform targets are expected to have, and the number of
            classes C; guessing has ln C. ``None`` where no logits were seen.
        half_lives: state-space layer → half-lives of its states in tokens, (H, N) or (H, 1), for an input that leaves
            Δ as it is.
        half_lives_on_batch: the same at the mean Δ of a given batch's tokens.
        doubt: what the first loss holds under; empty where the model itself, or ``classes``, says how many there are.
    """

    model: str
    records: list[Record]
    findings: list[Finding] = field(default_factory=list)
    blocks: list[BlockScale] = field(default_factory=list)
    products: dict[str, dict[str, float]] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    loss: tuple[float, int] | None = None
    half_lives: dict[str, Tensor] = field(default_factory=dict)
    half_lives_on_batch: dict[str, Tensor] = field(default_factory=dict)
    doubt: str = ""

    @property
    def recognized(self) -> float:
        """The share of parameters whose distribution, or a reference that they equal, is known."""
        return sum(record.recognized for record in self.records) / len(self.records)

    def lines(self) -> list[Line]:
        """Return a line per block, those that are alike folded."""
        lives = {name: (each, self.half_lives_on_batch.get(name)) for name, each in self.half_lives.items()}
        return block_lines(self.records, self.blocks, {**self.products, **lives})

    def headline(self) -> str:
        """Return one line: the model, its size and how much of it was recognized."""
        size = sum(record.size for record in self.records)
        known = sum(record.recognized for record in self.records)
        line = f"{self.model}: {size:,} numbers in {len(self.records)} parameters, {known} of them recognized"
        if self.loss is not None:
            line += f"; first loss {self.loss[0]:.3g}, ln {self.loss[1]:,} = {math.log(self.loss[1]):.3g}" + (
                self.doubt and f", {self.doubt}"
            )
        return line

    def summary(self) -> str:
        """Return a line per block, the findings and what was left out, as text."""
        lines = self.lines()
        width = max(len(line.name) for line in lines)
        body = [f"{line.name:{width}}  {line}" for line in lines]
        said = [*map(str, self.findings or ["nothing suspicious was found"]), *self.notes]
        return "\n".join([self.headline(), "", *body, "", *said])

    def markdown(self) -> str:
        """Return the same as Markdown, with a table of blocks and one of the attention products."""
        rows = [f"| `{line.name}` | {line.parameters} | {line.scales.replace(', ', '<br>')} |" for line in self.lines()]
        said = [f"- {each}" for each in (*self.findings, *self.notes)]
        table = ["| block | drawn from | root mean square |", "|---|---|---|", *rows]
        return "\n".join([
            f"# Audit of {self.model}", "", self.headline() + ".", "", *table, *self._product_rows(), "",
            "## Findings", "", *(["Nothing suspicious was found.", ""] if not self.findings else []), *said,
        ]) + "\n"  # fmt: skip

    def table(self) -> DataFrame:
        """Return a row per parameter as a pandas ``DataFrame``."""
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise (missing_extra(error, "Audit.table()", "compare") or error) from None
        return DataFrame([self._row(record) for record in self.records])

    def _row(self, record: Record) -> dict[str, Any]:
        seen = record.distribution
        return {
            "parameter": " = ".join(record.names),
            "block": record.block,
            "role": record.role,
            "shape": "×".join(map(str, record.shape)) or "scalar",
            "kind": seen.kind,
            "in_words": describe_kind(record),
            "scale": seen.scale if seen.kind not in ("constant", "memory", "unreadable") else math.nan,
            "cut": seen.cut if seen.kind == "truncated normal" else math.nan,
            "mean": record.mean,
            "std": record.std,
            "largest": record.largest,
            "kurtosis": record.kurtosis,
            "equals": "; ".join(dict.fromkeys(reference.name for reference in record.references)),
            "gradient": self.gradients.get(record.name, math.nan),
            "trainable": record.trainable,
            "dtype": record.dtype,
        }

    def _product_rows(self) -> Iterator[str]:
        if self.products:
            yield from ("", "| attention | W_q W_kᵀ: diagonal, off it | W_v W_o: diagonal, off it |", "|---|---|---|")
        for name, numbers in self.products.items():
            cells = (
                f"{numbers[f'{product}_diagonal']:+.2g} ± {numbers[f'{product}_off_diagonal_std']:.2g}"
                for product in ("query_key", "value_output")
            )
            yield f"| `{name}` | {' | '.join(cells)} |"
        if self.half_lives:
            yield from ("", "| state space | half-lives | on the batch |", "|---|---|---|")
        for name, lives in self.half_lives.items():
            seen = self.half_lives_on_batch.get(name)
            yield f"| `{name}` | {in_tokens([lives])} | {'' if seen is None else in_tokens([seen])} |"

    def __str__(self) -> str:
        return wrapped(self.summary())


def _depth(
    model: nn.Module, given: Inputs | None, blocks: dict[str, nn.Module], seed: int, classes: int | None
) -> tuple[Depth, list[str]]:
    """Run what was given, or what the host names; only an error on the latter is kept as a note."""
    if given is not None:
        return measure_depth(model, given, blocks, seed, classes), []
    inputs = host_inputs(model, seed)
    if inputs is None:
        return Depth(), [NO_INPUTS]
    try:
        return measure_depth(model, inputs, blocks, seed, classes), []
    except Exception as error:  # whatever a model does with inputs that it was not asked about
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return Depth(), [f"activations and gradients left out: the model does not run on its host's inputs: {reason}"]


def _not_normal(reference: Reference) -> bool:
    return not reference.expected.kind.endswith("normal")


def _delayed(found: list[Record], depth: Depth) -> Iterator[str]:
    """Say where zeros keep the gradient from every block in the first step, as a head of zeros does."""
    if depth.blocks and all(each.gradient == 0 for each in depth.blocks):
        zeros = [each.name for each in found if each.largest == 0 and depth.gradients.get(each.name, 0) > 0]
        behind = [name for name in zeros if not name.endswith("bias")]
        yield f"gradients: no block gets one before {', '.join(behind[:3]) or 'the head'}, which is zero, has moved"


@dataclass(frozen=True)
class Line:
    """One block, or several that are alike."""

    blocks: tuple[str, ...]  # their names
    parameters: str  # what they were drawn from
    scales: str = ""  # activations and gradients behind them; empty where no batch was run
    mixing: str = ""  # of attention, diagonals that stand out from chance; of state spaces, half-lives

    @property
    def name(self) -> str:
        """``blocks.0–11`` for blocks.0 … blocks.11."""
        return folded_name(self.blocks)

    def __str__(self) -> str:
        return " | ".join(each for each in (self.parameters, self.scales, self.mixing) if each)


def block_lines(
    records: Sequence[Record], scales: Iterable[BlockScale], mixing: Mapping[str, dict[str, float] | tuple]
) -> list[Line]:
    """Return a line per run of blocks whose parameters have the same names, shapes and initializations.

    Runs are of blocks whose names differ in numbers alone, whatever stands between: a mixer, the norm beside it.
    """
    by_block: dict[str, list[Record]] = {}
    for record in records:
        by_block.setdefault(record.block, []).append(record)
    scales = list(scales)
    layers: dict[str, list[dict[str, float] | tuple]] = {}
    for name, numbers in mixing.items():
        around = [block for block in by_block if name == block or name.startswith(f"{block}.")]
        layers.setdefault(max(around, key=len, default=""), []).append(numbers)
    found = []
    runs: list[list[str]] = []
    last: dict[str, list[str]] = {}  # run of each kind of name; a block is compared with the first of its run
    for block, own in by_block.items():
        kind = re.sub(r"\d+", "#", block)
        if kind in last and _alike(by_block[last[kind][0]], own):
            last[kind].append(block)
        else:
            runs.append(run := [block])
            last[kind] = run
    for blocks in map(tuple, runs):
        inside = [numbers for block in blocks for numbers in layers.get(block, [])]
        shown = aligned(next((each for each in inside if isinstance(each, dict)), {}))
        if lives := [each for each in inside if isinstance(each, tuple)]:
            shown.append(f"half-lives {in_tokens(one for one, _ in lives)}")
            if on_batch := [other for _, other in lives if other is not None]:
                shown[-1] += f" ({in_tokens(on_batch)} on the batch)"
        seen = [each for each in scales if each.name in blocks]
        most = max((each.run for each in seen), default=1)
        scale = f"activations {_span(seen, 'activation')}, gradients {_span(seen, 'gradient')}" if seen else ""
        scale += f", over {most} runs" if most > 1 else ""
        found.append(Line(blocks, _parameters([by_block[block] for block in blocks]), scale, ", ".join(shown)))
    return found


def _alike(ones: Sequence[Record], others: Sequence[Record]) -> bool:
    """Tell whether two blocks may stand in one line: their parameters named and shaped alike, drawn from the same."""
    return len(ones) == len(others) and all(
        (one.inside, one.shape, one.trainable) == (other.inside, other.shape, other.trainable)
        and _same_draw(one, other)
        for one, other in zip(ones, others, strict=True)
    )


def _same_draw(one: Record, other: Record) -> bool:
    """Tell whether two parameters may come from one draw: by a reference of both, else by kind, scale and mean.

    Scale and mean may differ by their sampling errors, and by ``CLOSE`` times the scale where no reference is known.
    What is unclear is drawn as nothing that is known is: no line says more of a parameter than the table does.
    """
    if one.references and other.references:
        return bool(set(one.references) & set(other.references))
    a, b = one.distribution, other.distribution
    if a.kind != b.kind or one.recognized != other.recognized:
        return False
    if a.kind not in RANDOM:
        return all(math.isclose(x, y, rel_tol=CLOSE) for x, y in ((a.scale, b.scale), (a.center, b.center)))
    errors = STANDARD_ERRORS * math.sqrt(1 / one.size + 1 / other.size)
    # A bound is the largest number of those drawn, which is nearer to it than the standard deviation is to σ.
    scales = -math.log(ALPHA) / min(one.size, other.size) if a.kind == b.kind == "uniform" else math.sqrt(0.5) * errors
    close = 0.0 if one.references or other.references else CLOSE
    largest = max(a.scale, b.scale)
    return (
        math.isclose(min(a.cut, 9.0), min(b.cut, 9.0), rel_tol=CLOSE)
        and abs(a.scale - b.scale) <= max(close, scales) * largest
        and abs(a.center - b.center) <= max(close, errors) * largest
    )


def _pooled(group: Sequence[Record]) -> Record:
    """Return a record for several of one draw: with the references that all equal, else with their mean scale.

    That mean is as sure as all their numbers make it. A mean of bounds is not: each is too small by its own largest.
    """
    compared = [each for each in group if each.references or each.size >= FEWEST]
    first = next(iter(compared), group[0])
    # By their words: of nearly equal fans, scales differ in digits that are not shown.
    said = [{label(replace(each, references=(one,))): one for one in each.references} for each in compared]
    common = tuple(one for words, one in said[0].items() if all(words in each for each in said)) if said else ()
    if common:
        return replace(max(compared, key=lambda each: each.size), references=common)
    first = replace(max(group, key=lambda each: each.size), references=())
    if first.distribution.kind not in RANDOM:
        return group[0]
    group = [*{each.drawn: each for each in group}.values()]  # copies count once
    numbers = sum(each.size for each in group)
    scale, center = (
        sum(each.size * getattr(each.distribution, key) for each in group) / numbers for key in ("scale", "center")
    )
    around = 0.0 if any(each.distribution.center == 0 for each in group) else center
    shape = first.shape if first.distribution.kind == "uniform" else (numbers,)
    return replace(first, shape=shape, distribution=replace(first.distribution, scale=scale, center=around))


def _parameters(blocks: Sequence[Sequence[Record]]) -> str:
    """Say what the parameters of one block, or of several that are alike, were drawn from; equal words stand once."""
    groups: dict[str, list[Record]] = {}
    usual: list[str] = []
    for alike in zip(*blocks, strict=True):
        record = _pooled(alike)
        said = label(record)
        if record.role in ("bias", "norm bias") and said == "zeros":
            usual.append("biases")
        elif record.role == "norm" and said == "ones":
            usual.append("norms")
        else:
            groups.setdefault(said, []).append(record)
    drawn = []
    for said, own in groups.items():
        alike: dict[str, list[str]] = {}  # experts in one name
        for name in filter(None, (record.inside.removesuffix(".weight") for record in own)):
            alike.setdefault(re.sub(r"\bexperts\.\d+", "experts.#", name), []).append(name)
        drawn.append(f"{', '.join(map(folded_name, alike.values()))}: {said}".removeprefix(": "))
    told = {record.role for own in groups.values() for record in own}
    rest = (("norms", "ones", {"norm"}), ("biases", "zeros", {"bias", "norm bias"}))
    drawn += [f"{'other ' * bool(roles & told)}{words} {value}" for words, value, roles in rest if words in usual]
    return "; ".join(drawn)


def _span(seen: Sequence[BlockScale], key: str) -> str:
    """Return the first and the last of blocks one behind the other, else the smallest and the largest."""
    values, behind = [getattr(each, key) for each in seen], all(each.behind for each in seen[1:])
    ends = [values[0], values[-1]] if behind else [min(values), max(values)]
    return (" → " if behind else " to ").join(f"{value:.2g}" for value in ends[: len(values)])
