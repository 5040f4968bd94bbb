"""What an initializer is, how several compose, and the one call that applies one to a model."""

from __future__ import annotations

import importlib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrize

from structured_init.presets import preset_node
from structured_init.report import InitReport, build_report
from structured_init.storage import quantized_layers, refuse_flattened, refuse_unreadable, refuse_unwritable
from structured_init.undisturbed import cpu_by_default
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError, nearest, shown
from structured_init.weights import Weights
from structured_init.writer import writing


class Initializer(ABC):
    """How a network is initialized: an object with plain, documented arguments that plans new weights.

    Subclass it and write :meth:`plan`; store every constructor argument under its own name.
    """

    baseline = False  # whether others are meant to write over it, and it is not meant to write over others
    samples_to_watch = 2  # real samples on which attention is found, checked and measured, where somebody has data

    @abstractmethod
    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        """Read and write the overlay.

        Args:
            weights: the overlay; sites read and write through it.
            rng: named generators; take one per site and part, and nothing from the global random state.
            batch: some real inputs, for the methods that can use them.

        Raises:
            StructuredInitError: a required part finds no site, or a site cannot hold what is asked.
        """

    @property
    def needs_batch(self) -> bool:
        """Whether :meth:`plan` needs real inputs; whoever has data then gives some."""
        return False

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        """Say which parameters this initialization freezes or thaws; by default it leaves all as the host has them.

        This is apart from the values because freezing must be known before optimizers and wrappers are built, and on
        a resumed run as well, where no value is written.
        """
        return ()

    def __repr__(self) -> str:
        return _called(self, whole=True)


def _called(initializer: Initializer, *, whole: bool) -> str:
    """Return the call that makes an initializer, with every argument or with those that differ from their defaults.

    What it does not keep under its argument's name is shown as ``…``.
    """
    shown = []
    for name, parameter in inspect.signature(type(initializer)).parameters.items():
        value = _written(getattr(initializer, name), whole=whole) if hasattr(initializer, name) else "…"
        if whole or value != repr(parameter.default):
            shown.append(f"{name}={value}")
    return f"{type(initializer).__name__}({', '.join(shown)})"


def _written(value: object, *, whole: bool) -> str:
    """Return an argument as text that is equal in two equal runs: a function by its name, since its address differs."""
    if isinstance(value, Initializer):
        return repr(value) if whole else _called(value, whole=False)
    if isinstance(value, list):
        return f"[{', '.join(_written(each, whole=whole) for each in value)}]"
    if inspect.isfunction(value):
        return value.__qualname__
    if isinstance(value, nn.Module):
        return type(value).__qualname__
    if isinstance(value, Mapping) and any(isinstance(each, Tensor) for each in value.values()):
        return f"a dictionary of {len(value)} tensors"
    return repr(value)


class Compose(Initializer):
    """Several initializers in order on one overlay: later ones see, and may overwrite, what earlier ones wrote.

    What an initializer notes and measures is of the network as it was then. A warning tells of a baseline that draws
    anew what a method wrote before it.

    Args:
        initializers: at least one.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import Compose, KaimingUniform, Mimetic, initialize
        >>> report = initialize(model, Compose([KaimingUniform(), Mimetic()]), seed=0)
        >>> next(entry.set_by for entry in report.entries if entry.names[0] == "blocks.0.attn.proj.weight")
        ('KaimingUniform', 'Mimetic: value_output')
    """

    def __init__(self, initializers: list[Initializer]) -> None:
        listed = isinstance(initializers, list | tuple) and len(initializers) > 0
        if not listed or not all(isinstance(each, Initializer) for each in initializers):
            raise StructuredInitError(
                f"Compose takes a list of Initializer objects, as in Compose([Mimetic()]), got {shown(initializers)}"
            )
        self.initializers = initializers

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        baselines = set()
        for initializer in members(self):
            who = type(initializer).__name__
            if initializer.baseline:
                baselines.add(who)
            weights.progress = weights.progress and who
            initializer.plan(weights, rng=rng, batch=batch)
            weights.flush()
        for update in weights.updates.values():
            *before, last = [by.partition(":")[0] for by in update.by]
            wrote = ", ".join(sorted(set(before) - baselines))
            if last in baselines and wrote:
                weights.warn(f"{last} draws anew what {wrote} wrote before: put {last} first in Compose")

    @property
    def needs_batch(self) -> bool:
        return any(initializer.needs_batch for initializer in self.initializers)

    @property
    def samples_to_watch(self) -> int:
        return max(initializer.samples_to_watch for initializer in self.initializers)

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        for initializer in self.initializers:
            yield from initializer.freezing(weights)


def members(initializer: Initializer) -> Iterator[Initializer]:
    """Yield the initializers that a composition applies, in order; of any other one, itself."""
    if isinstance(initializer, Compose):
        for each in initializer.initializers:
            yield from members(each)
    else:
        yield initializer


def parts_of(initializer: object) -> Iterator[object]:
    """Yield an initializer and those that it is composed of or a control of."""
    yield initializer
    for part in (*getattr(initializer, "initializers", ()), getattr(initializer, "initializer", None)):
        if part is not None:
            yield from parts_of(part)


def initialize(
    model: nn.Module,
    initializer: Initializer | str,
    *,
    seed: int = 0,
    batch: Tensor | tuple | Mapping | Callable[[], Any] | None = None,
    dry_run: bool = False,
    broadcast: bool = False,
    strict: bool = False,
    progress: bool = True,
) -> InitReport:
    """Initialize ``model`` with ``initializer``, in place.

    Parameters keep their identity, dtype and device; the global random state is untouched. A failure leaves the model
    as it was. Beyond the model, memory holds about one layer (see ``docs/scaling.md``); what was overwritten is kept in
    a temporary file until the end. The values are equal on one machine with one number of threads, and close elsewhere.

    Args:
        model: any module; only the sites that the initializer asks for must be known.
        initializer: what to do; a text is the name of a preset, such as ``"mimetic"`` (:func:`preset`).
        seed: with the names of the parameters, all that the draws depend on; what a method measures depends on
            ``batch`` as well, which has to be the same in every run and on every rank. Names are relative to ``model``:
            inside of another module of one's own, the same network has other names and other draws. Wrappers
            (``torch.compile``, checkpointing, DDP, FSDP2, averaging, PEFT) change neither; nor does FSDP1 with
            ``NO_SHARD`` and ``use_orig_params=True``, and any other FSDP1 is refused.
        batch: some real inputs, one or two samples, as the model takes them: a tensor, or a tuple or dictionary of
            several. One forward pass on them finds attention of unknown classes and checks every layout; without them,
            what the host library offers serves. Methods that run the model themselves are given a tensor alone. A
            function that returns the inputs is called only where attention is sought and not all of it is known.
        dry_run: only plan: the report says what would be written, and the model is not touched. Memory then holds
            every change at once.
        broadcast: take rank 0's values on every rank of the default process group; all ranks must call.
        strict: refuse a model of which attention would be left alone that ``where`` selects, because its class is not
            known or because it is cross-attention, and heads that reach less than half of what was asked for in the
            network. Without, the report says so, and warns where that is most of it.
        progress: show on stderr, in a terminal or notebook, which layer is reached, if it takes more than 3 seconds.

    Returns:
        The report: who set which parameter, with statistics before and after.

    Raises:
        StructuredInitError: a required part finds no site, and the message lists what the model has; a plan of one's
            own has changed the model itself, which then stays changed; ``seed`` is no whole number; FSDP1 has flattened
            the weights; a parameter is float8 or sparse, or shares a part of its memory; or, with ``strict``, attention
            is left alone.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import Mimetic, initialize
        >>> report = initialize(model, Mimetic(), seed=0)
        >>> [entry.names[0] for entry in report.changed][:2]
        ['pos_embed', 'blocks.0.attn.qkv.weight']
    """
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"initialize needs a model, an nn.Module, got {type(model).__name__}")
    initializer = _given("initialize", initializer)
    draws = Draws(seed)
    refuse_unreadable(model)
    refuse_flattened(model)
    refuse_unwritable(model)
    another_rank = dist.is_available() and dist.is_initialized() and dist.get_rank()
    under_way = type(initializer).__name__ if progress and not another_rank else ""
    with cpu_by_default(), writing(broadcast=broadcast) as writer, parametrize.cached():
        weights = Weights(model, None if dry_run else writer, batch, under_way)
        changes = list(initializer.freezing(weights))
        versions = _versions(model, initializer)
        initializer.plan(weights, rng=draws, batch=batch if isinstance(batch, Tensor) else None)
        for parameter, version in versions:
            if parameter._version != version and id(parameter) not in weights.updates:
                raise StructuredInitError(
                    f"{type(initializer).__name__} has changed '{weights.names(parameter)[0]}' itself, of which no "
                    "report knows: its plan has to say weights.write(parameter, value, by)"
                )
        weights.flush()
        if weights.refused and not weights.updates:
            raise StructuredInitError("; ".join(f"{who}: {why}" for who, why in weights.refused.items()))
        for name, _ in quantized_layers(model):
            weights.skip(name, "quantized weights are out of reach: initialize the model before it is quantized")
        report = build_report(weights, repr(initializer), _called(initializer, whole=False), draws.seed, changes)
        if strict and report.left:
            raise StructuredInitError(
                f"{type(initializer).__name__}, strict: {report.left_alone()} (where= selects fewer layers)"
            )
        if strict and weights.short:
            raise StructuredInitError(f"{type(initializer).__name__}, strict: {weights.short[0]}")
        if not dry_run:
            for tensor, trainable in changes:
                writer.train(tensor, trainable)
    return report


def _versions(model: nn.Module, initializer: Initializer) -> list[tuple[Tensor, int]]:
    """Return the parameters that a plan which is not this library's may change itself, and how often they were so far.

    A plan of this library's may run the model, which may change its own numbers (``nn.Embedding(max_norm=1.0)``).
    """
    if all(type(each).__module__.startswith("structured_init.") for each in members(initializer)):
        return []
    return [(each, each._version) for each in model.parameters() if not each.is_inference()]


def freeze(model: nn.Module, initializer: Initializer | str) -> None:
    """Apply only what ``initializer``, or the preset of that name, says about which parameters are trained.

    That is its argument ``frozen`` or ``trainable``. Most have none, and then nothing changes; ``report.changed`` names
    what an initializer has set.
    """
    initializer = _given("freeze", initializer)
    weights = Weights(model)
    with writing() as writer:
        for tensor, trainable in initializer.freezing(weights):
            writer.train(tensor, trainable)
    for warning in weights.warnings:
        warnings.warn(warning, stacklevel=3)  # of who called it


def _given(who: str, initializer: Initializer | str) -> Initializer:
    """Return an initializer, also that of a preset by its name."""
    if isinstance(initializer, str):
        return preset(initializer)
    if not isinstance(initializer, Initializer):
        raise StructuredInitError(
            f"{who} takes one Initializer such as Mimetic(), or Compose([…]) of several, got {shown(initializer)}"
        )
    return initializer


def pending_freezing(model: nn.Module, initializer: Initializer) -> list[str]:
    """Return the names of parameters whose ``requires_grad`` is not yet what ``initializer`` says."""
    weights = Weights(model)
    return [weights.names(p)[0] for p, trainable in initializer.freezing(weights) if p.requires_grad != trainable]


def preset(name: str) -> Initializer:
    """Return the initializer that a preset stands for.

    Args:
        name: of a file in ``configs/init``, such as ``"mimetic"``; with arguments in braces behind it,
            ``"impulse{kernel_size=5}"``; or with ``_scrambled``, ``_sharpened`` or ``_positions`` for a control of it.
            Or the path of a YAML file with a section ``init``.

    Raises:
        StructuredInitError: there is no such preset (the nearest is named), or arguments are given to a composition.
        TypeError: the class does not have an argument.

    Example:
        >>> from structured_init import preset
        >>> preset("impulse{kernel_size=5}").kernel_size
        5
    """
    return _built(preset_node(name))


def _built(value: Any) -> Any:
    """Return what a part of a YAML file stands for: an object where it names a class."""
    if isinstance(value, list):
        return [_built(each) for each in value]
    if not isinstance(value, dict) or "class_path" not in value:
        return value
    import structured_init

    module, _, name = value["class_path"].rpartition(".")
    try:
        cls = getattr(importlib.import_module(module) if module else structured_init, name)
    except (ImportError, AttributeError):
        near = nearest(name, structured_init.__all__)
        raise StructuredInitError(f"there is no class '{value['class_path']}': {near}") from None
    return cls(**{key: _built(each) for key, each in value.get("init_args", {}).items()})
