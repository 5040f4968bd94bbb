"""``structured-init show`` and ``audit``: apply an initializer and look at the model, without training."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import timm
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from callbacks.attention_map import AttentionMapCallback
from callbacks.samples import PROBE, collect, first_loader, inputs_of, training_loaders
from lightning_modules.cli.configurations import config_names, initializations
from lightning_modules.cli.mistakes import refuse_unwritable
from lightning_modules.tasks.checkpoint import read_checkpoint, refuse_other_weights
from structured_init import Initializer, InitReport, attention_sites, initialize
from structured_init.analysis import Audit, NoAttentionError, WeightProducts, audit, capture_attention, weight_products
from structured_init.analysis.filters import depthwise_filters
from structured_init.analysis.statistics import mean_map
from structured_init.hosts import state_space_sites
from structured_init.hosts.attention import sought_attention_sites
from structured_init.initializer import preset
from structured_init.inputs import as_inputs, host_inputs, numbered, undisturbed
from structured_init.presets import CONTROLS, preset_names, split_overrides
from structured_init.transfer.teacher import beginnings, opened, tensors_of
from structured_init.util.errors import StructuredInitError, imported, nearest, one_line
from structured_init.util.files import replacing, write_text
from structured_init.util.names import within
from structured_init.util.progress import bar
from structured_init.weights import Weights


class NamedModel(LightningModule):
    """A model by its name, with fresh weights, for the commands ``show``, ``audit`` and ``list``.

    Args:
        name: of a model of timm; a model type of transformers, such as ``gpt2``, whose configuration is then the
            library's own; a ``config.json`` of transformers, or the folder that holds one; or ``MODULE:FUNCTION``, a
            function or class of one's own that builds a model, imported from the present folder as well.
        layers: build so many alone, of timm's and transformers' stacks whose number is an argument.
        args: what ``timm.create_model``, or one's own function, is given, such as ``num_classes``; of transformers,
            settings of the configuration.

    Raises:
        StructuredInitError: there is no such model, one too large to be built here, or one that does not take ``args``.
    """

    def __init__(self, name: str, layers: int | None = None, args: dict[str, Any] | None = None) -> None:
        super().__init__()
        if ":" in name:
            self.network = _of_function(name, args or {})
        elif timm.is_model(name) and not Path(name).exists():
            self.network = _of_timm(name, layers, args or {})
        else:
            self.network = _of_transformers(name, layers, args or {})


MOST = 3 * 10**9  # numbers of a model that is built to be looked at: 12 GB
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
          "num_decoder_layers", "depths")  # fmt: skip


def _of_function(name: str, args: dict[str, Any]) -> nn.Module:
    """Build what ``MODULE:FUNCTION`` names; its layers are its own matter."""
    build = imported("cannot build", name)
    try:
        inspect.signature(build).bind(**args)
    except TypeError as error:
        raise StructuredInitError(f"cannot build '{name}': {error}") from error
    except ValueError:  # what is written in C has no signature
        pass
    model = build(**args)  # an error of one's own code keeps its traceback
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"'{name}' builds no torch.nn.Module, but {type(model).__name__}")
    return model


def _of_timm(name: str, layers: int | None, args: dict[str, Any]) -> nn.Module:
    for fewer in ({"depth": layers}, {"depths": (layers,) * 4}) if layers is not None else ():
        with contextlib.suppress(Exception):  # whatever a family says of another depth: the next, then the whole of it
            return timm.create_model(name, **{**fewer, **args})
    try:
        return timm.create_model(name, **args)
    except (TypeError, AssertionError) as error:
        raise StructuredInitError(f"timm cannot build '{name}' with {args}: {one_line(error)}") from error


def _of_transformers(name: str, layers: int | None, args: dict[str, Any]) -> nn.Module:
    config = _configuration(name, args)
    build = _builder(config)
    if build is None:
        raise StructuredInitError(f'the configuration of \'{name}\' names no class: give it, as "architectures": ["…"]')
    for part in _parts(config) if layers is not None else ():
        for key in LAYERS:
            count = getattr(part, key, None)
            if isinstance(count, int):
                setattr(part, key, min(layers, count))
            elif count:  # of several stages
                setattr(part, key, [min(layers, each) for each in count])
    try:
        with torch.device("meta"):
            size = sum(each.numel() for each in build(config).parameters())
        if size <= MOST:
            return build(config)
    except Exception as error:  # whatever a class says of numbers that do not go together
        raise StructuredInitError(f"transformers cannot build '{name}': {one_line(error)}") from error
    raise StructuredInitError(f"'{name}' has {size:,} parameters: give fewer layers, --model.layers=2")


def _configuration(name: str, args: dict[str, Any]) -> Any:
    """Return a configuration of transformers: of a file, a folder that holds ``config.json``, or a model type."""
    import transformers

    if Path(name).suffix in (".ckpt", ".safetensors", ".pt", ".pth", ".bin") and Path(name).is_file():
        raise StructuredInitError(f"'{name}' holds weights: name the model that they are of, and --checkpoint {name}")
    if Path(name).exists():
        try:
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **args)
        except Exception as error:  # no JSON, or a value that the class refuses, by an error of its own
            raise StructuredInitError(f"'{name}' is no configuration of transformers: {one_line(error)}") from error
    if name in transformers.CONFIG_MAPPING:
        return transformers.AutoConfig.for_model(name, **args)
    known = {*map(str, Path().glob("*.json")), *timm.list_models(), *transformers.CONFIG_MAPPING}
    for each in config_names():
        known |= {each, each.partition("/")[2]}
    raise StructuredInitError(f"there is no file, configuration or model '{name}': {nearest(name, known)}")


def _builder(config: Any) -> Callable[[Any], nn.Module] | None:
    """Return what builds the class that a configuration names, else the first that transformers has for it."""
    import transformers

    if config.architectures and hasattr(transformers, config.architectures[0]):
        return getattr(transformers, config.architectures[0])
    if config.is_encoder_decoder:
        tasks = ["Seq2SeqLM", "SpeechSeq2Seq", "CausalLM"]
    elif getattr(config, "is_decoder", False):
        tasks = ["CausalLM"]
    else:
        tasks = ["MaskedLM", "CausalLM"]
    every = sorted(each for each in dir(transformers) if each.startswith("AutoModelFor"))
    for auto in (*(f"AutoModelFor{task}" for task in tasks), "AutoModel", *every):
        if type(config) in getattr(getattr(transformers, auto), "_model_mapping", ()):
            return getattr(transformers, auto).from_config
    return None


def _parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside it, as of two towers."""
    yield config
    for key in config.sub_configs:
        if (part := getattr(config, key, None)) is not None:
            yield from _parts(part)


def by_position(args: list[str]) -> list[str]:
    """Return a command line with the names behind ``show`` and ``audit`` as options: a model, then initializations."""
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), args[1:]))
    if args[:1] not in (["show"], ["audit"]):
        return args
    rest = [each for each in args[1 + len(names) :] if each != "--no-open"]
    # The names by which -c knows a configuration, with their folder and without.
    known = {each for name in config_names() for each in (name, name.partition("/")[2], f"configs/{name}.yaml")}
    words = []
    for number, name in enumerate(names):
        stem = split_overrides(name)[0]
        file = Path(stem).suffix in (".yaml", ".yml")
        preset = number and not file and (stem in preset_names() or any(stem.endswith(each) for each in CONTROLS))
        model = not number and not file and stem not in known
        words += [f"--model={NAMED}", f"--model.name={name}"] if model else ["-c", f"init/{name}" if preset else name]
    if any(word.startswith("--model=") for word in words[2:]):
        raise StructuredInitError(f"'{args[0]}' takes one model, got {', '.join(names)}")
    return [args[0], *words, *rest]


NAMED = f"{NamedModel.__module__}.{NamedModel.__name__}"
SAMPLES = 2


def some_samples(
    model: LightningModule, datamodule: LightningDataModule | None, count: int = SAMPLES, seed: int = 0
) -> Any:
    """Return what the module takes of a few training samples: of two, on which attention is found by watching.

    The module says so with ``probe_inputs(batch)``; where it does not, it is the batch's first element. The datamodule
    is set up, and its dataset read, as for a training of that seed; no loader is iterated. Without data it is refused.
    """
    if datamodule is None:
        raise StructuredInitError("samples are needed, and there is no datamodule to take them from")
    with _reading(model, datamodule):
        loaders = training_loaders(model, datamodule.train_dataloader())
        batch, _ = collect(loaders, count, seed, "reading samples", to_train=True)
    return inputs_of(model, batch)


@contextlib.contextmanager
def _reading(model: LightningModule, datamodule: LightningDataModule) -> Iterator[None]:
    """Set up data that are read in the block; where a module's own need what is not here, it is refused in one line."""
    try:
        datamodule.prepare_data()
        datamodule.setup("fit")
        yield
    except Exception as error:
        if isinstance(error, StructuredInitError) or type(datamodule) is not LightningDataModule:
            raise
        why = one_line(error) or type(error).__name__
        raise StructuredInitError(f"the data of {type(model).__name__} cannot be read here: {why}") from error


def solvers(part: Any) -> Iterator[Any]:
    """Yield what takes steps inside an initializer, itself maybe: what has a number of ``iterations``."""
    if isinstance(getattr(part, "iterations", None), int):
        yield part
    for each in vars(part).values() if hasattr(part, "__dict__") else ():
        for inner in each if isinstance(each, (list, tuple)) else [each]:
            if type(inner).__module__.startswith("structured_init."):
                yield from solvers(inner)


def leave_out_iterations(initializer: Any) -> None:
    """Let solvers inside an initializer take no step: what they begin with fits where their solution does."""
    for each in solvers(initializer):
        each.iterations = 0


def planned(model: nn.Module, presets: Sequence[str] = (), samples: Any = None) -> dict[str, str]:
    """Return why each initialization does not fit a model, by its name; an empty text where it does.

    Without names they are all that are made for what layers the model has, and without samples of its inputs these are
    those that its host library names. The model is not changed; no solver takes a step.
    """
    few = many = samples
    if samples is None:
        given = [host_inputs(model, batch=number) or ((), {}) for number in (1, 16)]
        few, many = (named or (args[0] if args else None) for args, named in given)
    mixers = state_space_sites(model)
    convolutions = (
        each
        for name, each in model.named_modules()
        if isinstance(each, nn.modules.conv._ConvNd) and not any(within(name, mixer.name) for mixer in mixers)
    )
    has = {  # which layers: no convolution is one of patches, or the short one of a state space
        "attention": attention_sites(Weights(model, batch=few)),
        "state space": mixers,
        "convolution": any(each.kernel_size > each.stride for each in convolutions),
    }
    seen = few
    with contextlib.suppress(StructuredInitError):  # without the data it is not known which kind of network it is
        seen = few() if callable(few) else few
    leaves = [leaf for leaf in tree_leaves(seen) if isinstance(leaf, Tensor)]
    pictures = getattr(model, "main_input_name", "") == "pixel_values" or any(leaf.ndim == 4 for leaf in leaves)
    words = not pictures and any(map(numbered, leaves))
    foreign = None if words == pictures else "vision" if words else "language models"
    made_for = {row["name"]: "" if has.get(row["kind"], True) else row["networks"] for row in initializations()}
    elsewhere = {row["name"]: f"{row['networks']}, though it can be written here" for row in initializations()
                 if foreign and foreign in row["networks"]}  # fmt: skip
    made_for = {name: others or elsewhere.get(name, "") for name, others in made_for.items()}
    presets, why = presets or [name for name, others in made_for.items() if not others], {}
    for each in bar(presets, "list"):
        initializer = preset(each)
        leave_out_iterations(initializer)
        try:
            real = many if initializer.needs_batch else few
            real = real() if callable(real) and initializer.needs_batch else real
            report = initialize(model, initializer, batch=real, dry_run=True, progress=False)
            other = made_for[each] and f"it is made for {made_for[each]}"
            why[each] = other if report.changed or each == "default" else "it changes nothing here"
        except StructuredInitError as error:
            why[each] = one_line(error)
    return why


TABLE, PAGE, PICTURE = "audit.csv", "audit.md", "audit.png"


def write_audit(found: Audit, folder: Path, figures: ModuleType) -> Iterator[Path]:
    """Write the table of parameters, the page and the picture into a folder, which is created, and yield the files."""
    table, page, picture = files = [folder / each for each in (TABLE, PAGE, PICTURE)]
    with replacing(table) as temporary:
        found.table().to_csv(temporary, index=False)
    write_text(page, found.markdown())
    figures.save_figure(figures.audit_figure(found), picture)
    yield from files


CORNER = 64  # rows and columns of the products that are drawn; whole ones of a ViT-B take 340 MiB


class Runner(Trainer):
    """Lightning's trainer with two more commands."""

    def show(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        *,
        initializer: Initializer,
        seed: int,
        figures: ModuleType,
        samples: int = 16,
        plan: bool = False,
        export: str | None = None,
        checkpoint: str | None = None,
        pretrained: str | None = None,
        output: str = "show",
    ) -> None:
        """Apply an initializer and draw what it did, without training.

        Args:
            model: the module, as the configuration builds it.
            datamodule: where the probe images come from, else the module's loaders; without both no attention
                is drawn.
            initializer: the one of the section ``init``.
            seed: of its draws.
            figures: the module that draws.
            samples: how many training samples an initializer gets that measures on them.
            plan: only print what would be done, and touch nothing.
            export: write the initialized network's weights to this file (``.safetensors``); the module's, where it has
                parameters outside of ``network``.
            checkpoint: a checkpoint of the same network, or exported weights, to draw beside it.
            pretrained: a pretrained model of timm to draw beside it.
            output: folder for the report and the figures.
        """
        count = samples if initializer.needs_batch else 0
        model, datamodule, batch = subject(model, datamodule, count, seed, initializer.samples_to_watch)
        if plan:
            print(_initialized(model, initializer, seed=seed, batch=batch, dry_run=True))
            return
        if export and not export.endswith(".safetensors"):
            raise StructuredInitError(f"--export writes safetensors: name the file '{Path(export).stem}.safetensors'")
        if export and Path(export).is_dir():
            raise StructuredInitError(f"cannot write to '{export}', a folder: name a file")
        folder = Path(output)
        for place in (folder, *([Path(export).parent] if export else [])):
            refuse_unwritable(place)
        others = dict(_others(model, checkpoint, pretrained))
        without = "no attention is drawn"
        asked = next((x for x in self.callbacks if isinstance(x, AttentionMapCallback)), AttentionMapCallback())
        probe = _probe(model, datamodule, without, asked.seed, asked.samples)
        if datamodule is None and sought_attention_sites(Weights(model), None):
            print(f"{without}: there are no samples; give a configuration with data, such as -c data/cifar10")
        label = " + ".join(type(part).__name__ for part in getattr(initializer, "initializers", [initializer]))
        drawn = {"layers": asked.layers, "max_samples": asked.samples, "seed": asked.seed} if asked.enabled else None
        views = {"as built": _view(model, probe, drawn)}
        report = _initialized(model, initializer, seed=seed, batch=batch)
        views[label] = _view(model, probe, drawn)
        for name, other in others.items():
            views[name] = _view(other, probe if name == "checkpoint" else None, drawn)
        print(report)
        report.save(folder / "init_report.json")
        written = [folder / "init_report.json", *_draw(views, folder, figures)]
        if export:
            made = {"initializer": report.initializer, "seed": str(report.seed)}
            with replacing(export) as temporary, torch.no_grad():  # the network alone, so that any program can load it
                save_model(_network(model), str(temporary), metadata=made)
            written.append(Path(export))
        print("\nwritten: " + ", ".join(map(str, written)))

    def audit(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        *,
        initializer: Initializer,
        seed: int,
        figures: ModuleType,
        samples: int = 16,
        classes: int | None = None,
        checkpoint: str | None = None,
        output: str | None = None,
    ) -> None:
        """Say what initialization a model really has, and what is suspicious about it.

        Args:
            model: the module, as the configuration builds it.
            datamodule: where the batch comes from, else the module's loaders; without both the network is run on what
                its host library names.
            initializer: the one of the section ``init``, applied first.
            seed: of its draws.
            figures: the module that draws.
            samples: how many training samples an initializer gets that measures on them.
            classes: number of classes or words, for the first loss, where the model does not say it.
            checkpoint: a checkpoint of the same network, or exported weights, to look at instead.
            output: folder for the table of parameters (CSV), the page (Markdown) and the picture (PNG).
        """
        if output:
            refuse_unwritable(Path(output))
        count = samples if initializer.needs_batch else 0
        model, datamodule, batch = subject(model, datamodule, count, seed, initializer.samples_to_watch)
        probe = _probe(model, datamodule, "activations and gradients are left out", seed)
        if checkpoint:
            _load(model, checkpoint)
        else:
            _initialized(model, initializer, seed=seed, batch=batch)
        # Without data the network is asked itself, whose host library the module around it hides.
        found = audit(_network(model) if probe is None else model, probe, classes=classes)
        print(found)
        if output:
            print("\nwritten: " + ", ".join(map(str, write_audit(found, Path(output), figures))))


def _initialized(model: nn.Module, initializer: Initializer, *, batch: Any, **options: Any) -> InitReport:
    """Initialize a model; where it has nothing that the initialization is for, name those that fit."""
    try:
        return initialize(model, initializer, batch=batch, **options)
    except StructuredInitError as error:
        if " found no " not in str(error):
            raise
        fit = [name for name, why in planned(model, samples=batch).items() if not why and name != "default"]
        more = f" and {len(fit) - 8} more, which list --for names" if len(fit) > 8 else ""
        raise StructuredInitError(f"{error}; these fit: {', '.join(fit[:8])}{more}") from error


def subject(
    model: LightningModule, datamodule: LightningDataModule | None, count: int, seed: int, watched: int = SAMPLES
) -> tuple[Any, LightningDataModule | None, Any]:
    """Return what is looked at, its data, and what gives samples of it: of a model by name the host library's example.

    A module's own loaders are its data, and one without parameters is built by its ``configure_model``, or by
    its ``setup`` where it has loaders. Where an initializer measures on ``count`` samples, these are read at once; else
    ``watched`` are read when they are asked for.
    """
    if isinstance(model, NamedModel):
        return model.network, datamodule, None
    if next(model.parameters(), None) is None:
        model.configure_model()
    if datamodule is None and is_overridden("train_dataloader", model):
        datamodule = LightningDataModule()
        for name in ("prepare_data", "setup", "train_dataloader", "val_dataloader"):
            setattr(datamodule, name, cache(getattr(model, name)))  # each once: setup may build layers
        if next(model.parameters(), None) is None:
            with _reading(model, datamodule):  # setup builds the layers
                pass
    given = partial(some_samples, model, datamodule, count or watched, seed)
    return model, datamodule, given() if count and datamodule is not None else given


class View(NamedTuple):
    """What is seen of a model, by layer."""

    products: dict[str, WeightProducts]  # corners
    maps: dict[str, Tensor]  # of attention, averaged over samples
    filters: dict[str, Tensor]  # of the depthwise convolutions, else of the others where nothing attends
    half_lives: dict[str, Tensor]  # of the states of state spaces, in tokens


def _view(model: nn.Module, probe: Any, drawn: Mapping[str, Any] | None) -> View:
    """Return what is seen of a model; ``drawn`` are options of ``capture_attention``, None without attention."""
    products = {
        site.name: WeightProducts(*(product[..., :CORNER, :CORNER].clone() for product in weight_products(site)))
        for site in sought_attention_sites(Weights(model, batch=None if probe is None else lambda: probe), None)
    }
    inputs, named = as_inputs(probe)
    try:
        seen = {} if probe is None or drawn is None else capture_attention(model, inputs, **drawn, **named)
    except NoAttentionError:
        if products:
            raise
        seen = {}
    lives = {site.name: site.half_life for site in state_space_sites(model)}
    filters = depthwise_filters(model) or ({} if products else _dense_filters(model))
    return View(products, {name: mean_map(maps) for name, maps in seen.items()}, filters, lives)


def _dense_filters(model: nn.Module) -> dict[str, Tensor]:
    """Return the filters (out · in, h, w) of the ordinary 2-D convolutions whose windows overlap: none of patches."""
    return {
        name: module.weight.detach().flatten(0, 1).float().cpu().clone()
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size > module.stride
    }


def _draw(views: dict[str, View], folder: Path, figures: ModuleType) -> Iterator[Path]:
    """Draw what there is to draw, and yield the files."""
    products, maps, filters, lives = (
        {label: getattr(view, kind) for label, view in views.items() if getattr(view, kind)} for kind in View._fields
    )
    # Each model on its own scale: trained and default products are a hundred times smaller than structured ones.
    for name, figure, shown in (
        ("weight_products.png", partial(figures.product_figure, same_scale=False), products),
        ("attention.png", figures.map_figure, maps),
        ("covariances.png", figures.covariance_figure, filters),
        ("filters.png", figures.filter_figure, filters),
        ("variances.png", figures.variance_figure, filters),
        ("half_lives.png", figures.half_life_figure, lives),
    ):
        if shown:
            figures.save_figure(figure(shown), folder / name)
            yield folder / name


def _probe(
    model: LightningModule, datamodule: LightningDataModule | None, without: str, seed: int, samples: int | None = None
) -> Any:
    """Return what the module takes of the samples that a training captures, or ``None``, and say what that costs.

    Without a number they are as many as a batch has.
    """
    if datamodule is None:
        return None
    try:
        with _reading(model, datamodule):
            loader = first_loader(datamodule.val_dataloader()) if is_overridden("val_dataloader", datamodule) else None
            loaders = training_loaders(model, datamodule.train_dataloader()) if loader is None else loader
            batch = tree_map(lambda each: _captured(each, samples, seed), loaders)
        inputs = inputs_of(model, batch)
    except StructuredInitError as error:
        print(f"{without}: {error}")
        return None
    if not hasattr(model, "probe_inputs"):  # it is a guess what such a module takes
        try:
            with undisturbed(model):
                args, named = as_inputs(inputs)
                model(*args, **named)
        except Exception as error:
            print(f"{without}: the first part of a batch is not what the module takes: {one_line(error)}")
            return None
    return inputs


def _captured(loader: Any, samples: int | None, seed: int) -> Any:
    """Return the samples that a training captures, or the first batch of a loader that has no samples by number."""
    if (sampler := getattr(loader, "batch_sampler", None)) is not None:
        with contextlib.suppress(Exception):  # of a dataset whose sampler gives keys; else the loader raises it again
            return collect(loader, samples or getattr(sampler, "batch_size", SAMPLES), seed, PROBE)[0]
    return next(iter(loader))


def _others(model: LightningModule, checkpoint: str | None, pretrained: str | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield the models to stand beside the initialized one."""
    if checkpoint:
        other = copy.deepcopy(model)
        _load(other, checkpoint)
        yield "checkpoint", other
    if pretrained:
        if not timm.is_model(pretrained):
            names = {tagged.partition(".")[0] for tagged in timm.list_models(pretrained=True)}
            raise StructuredInitError(f"unknown pretrained model '{pretrained}': {nearest(pretrained, names)}")
        try:
            yield pretrained, timm.create_model(pretrained, pretrained=True)
        except (OSError, RuntimeError) as error:  # no network, no such weights
            reason = str(error).splitlines()[0]
            raise StructuredInitError(f"cannot fetch the weights of '{pretrained}': {reason}") from error


def _network(model: nn.Module) -> nn.Module:
    """Return the network inside a module, or the module itself where a parameter lies outside of its ``network``."""
    network = getattr(model, "network", None)
    whole = isinstance(network, nn.Module) and len([*network.parameters()]) == len([*model.parameters()])
    return network if whole else model


def _load(model: nn.Module, path: str) -> None:
    """Load a checkpoint, or weights alone, into a module or its network, whichever has the names."""
    given = read_checkpoint(path)["state_dict"] if path.endswith(".ckpt") else opened(Path(path), "--checkpoint")
    weights, whole = tensors_of(given), tensors_of(model)
    present = whole if weights.keys() == whole.keys() else tensors_of(_network(model))
    ours, theirs = beginnings(present, weights)
    weights = {ours + name.removeprefix(theirs): each for name, each in weights.items() if name.startswith(theirs)}
    places = {name: (each.data_ptr(), each.shape) for name, each in present.items()}
    held = {place: weights[name] for name, place in places.items() if name in weights}  # of tied weights one name
    weights = {name: held[place] for name, place in places.items() if place in held} | weights
    refuse_other_weights(weights, present)
    for name, each in present.items():
        each.copy_(weights[name])
