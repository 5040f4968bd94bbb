"""What a model can be run on where nobody gave a batch: what its host library says about its own inputs."""

from __future__ import annotations

import math
import random
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.storage import not_finite
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules, plain_name, wrapped_child

LENGTH = 12  # tokens of a text
LIBRARIES = str(Path(torch.__file__).parents[1])  # where torch is, timm and transformers are installed
SAMPLES = 16000  # numbers of a sound, a second of it
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def as_inputs(batch: Any) -> Inputs:
    """Return a batch as what a model is called with: a mapping by name, a tuple in order, anything else alone."""
    if isinstance(batch, tuple | list):
        return tuple(batch), {}
    try:
        return (), dict(**batch)  # a dict, or transformers' BatchEncoding
    except TypeError:
        return (batch,), {}


def spread(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Inputs:
    """Return what a model is called with where its inputs may also stand in one tuple, or in a mapping by name.

    A mapping is spread where ``forward`` has an argument of the name of a key, a tuple where it requires several
    arguments or none, or holds one thing alone that is no tensor; where it requires one, another tuple is that one. So
    is a namedtuple of one field, and a tuple beside keywords.
    """
    if len(args) != 1 or not isinstance(args[0], Mapping if kwargs else tuple | Mapping):
        return args, kwargs
    model = find_runnable(model)
    while child := wrapped_child(model):
        model = find_runnable(model._modules[child])
    try:
        taken = signature(model.forward).parameters
    except (TypeError, ValueError):  # of a scripted model
        return args, kwargs
    kinds = [each.kind for each in taken.values()]
    needed = (each for each in taken.values() if each.default is each.empty)
    required = [each for each in needed if each.kind == each.POSITIONAL_OR_KEYWORD]
    if isinstance(args[0], Mapping):
        fits = bool({*args[0]} & {*taken}) or (Parameter.VAR_KEYWORD in kinds and not required)
    else:
        fits = type(args[0]) is tuple and len(args[0]) == 1 and not isinstance(args[0][0], Tensor)
        fits = fits or len(required) > 1 or Parameter.VAR_POSITIONAL in kinds or (not required and len(taken) > 1)
    if not fits:
        return args, kwargs
    args, named = as_inputs(args[0])
    return args, named | kwargs


def for_one_pass(inputs: Inputs) -> Inputs:
    """Return inputs in lists and dictionaries of their own: a model may fill them, as a cache."""
    return tree_map(lambda leaf: leaf, inputs)


def numbered(leaf: object) -> bool:
    """Say whether something are token numbers (B, N), or a mask over them."""
    return isinstance(leaf, Tensor) and leaf.ndim == 2 and not leaf.is_floating_point()


def tokens_in(inputs: Inputs) -> int:
    """Return how many tokens each sample has; 0 where none are given by number."""
    return max((leaf.shape[1] for leaf in tree_leaves(inputs) if numbered(leaf)), default=0)


BARE = ("torch.nn.modules.module", "lightning.pytorch.core.module", "pytorch_lightning.core.module")


def has_forward(model: nn.Module) -> bool:
    """Say whether a model has a forward of its own; many a LightningModule has a ``training_step`` alone."""
    return "forward" in vars(model) or getattr(getattr(type(model), "forward", None), "__module__", None) not in BARE


def find_runnable(model: nn.Module) -> nn.Module:
    """Return a model, or the only part with parameters of one that has no forward."""
    while not has_forward(model):
        parts = [child for child in model.children() if next(child.parameters(), None) is not None]
        if len(parts) != 1:
            break
        model = parts[0]
    return model


def host_inputs(model: nn.Module, seed: int = 0, batch: int = 2, length: int = LENGTH) -> Inputs | None:
    """Return inputs that the host library names; ``None`` where it says nothing.

    A model of transformers has a main input, whose sizes are in its configuration; one of timm or torchvision has the
    size of its images. Images and sounds are drawn from N(0, 1), tokens uniformly, ``length`` of them or as many as the
    model takes. The global random state is left alone.
    """
    model = find_runnable(model)
    while (child := wrapped_child(model)) is not None:
        model = find_runnable(model._modules[child])
    generator = torch.Generator().manual_seed(seed)
    weight = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), torch.zeros(()))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator).to(weight.device, weight.dtype)

    def tokens(vocabulary: int) -> Tensor:
        longest = _setting(config, "max_position_embeddings") or length
        longest = longest if longest > 0 else length  # XLNet's −1 is no end
        size = (batch, min(length, max(longest - _rows_of_padding(model, longest), 1)))
        return torch.randint(min(3, vocabulary - 1), vocabulary, size, generator=generator).to(weight.device)

    config = getattr(model, "config", None)
    if config is not None and hasattr(model, "main_input_name"):
        return _of_transformers(model, config, numbers, tokens)
    size = _image(model)
    return None if size is None else ((numbers(*size),), {})


def _of_transformers(model: nn.Module, config: Any, numbers: Any, tokens: Any) -> Inputs | None:
    """Return the main input of a model of transformers, and what else it cannot do without."""
    main, named = model.main_input_name, {}
    both = hasattr(model, "get_text_features") and hasattr(model, "get_image_features")  # CLIP and its kin
    if main == "pixel_values" or both:
        size = pair(_setting(config, "image_size"))
        if size is None:
            return None
        named["pixel_values"] = numbers(_setting(config, "num_channels") or 3, *size)
    if main == "input_ids" or both:
        named["input_ids"] = tokens(_setting(config, "vocab_size") or 100)
    if main == "input_values":
        bins, frames = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
        named[main] = numbers(frames, bins) if bins and frames else numbers(SAMPLES)
    if main == "input_features":
        bins, places = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
        if not bins or not places:
            return None
        named[main] = numbers(bins, 2 * places)
    if getattr(config, "is_encoder_decoder", False) and named:
        named["decoder_input_ids"] = tokens(_setting(config, "vocab_size") or 100)
    return ((), named) if named else None


def _rows_of_padding(model: nn.Module, longest: int) -> int:
    """Return how many of a table's positions come before the first token's: RoBERTa's begin behind that of padding."""
    held = ((getattr(each, "padding_idx", None), getattr(each, "weight", None)) for each in model.modules())
    tables = ((padding, table) for padding, table in held if padding is not None and table is not None)
    return max((padding + 1 for padding, table in tables if len(table) == longest), default=0)


def _setting(config: Any, name: str) -> Any:
    """Return a setting of a configuration, or of the part of it that has it."""
    parts = (config, *(getattr(config, part, None) for part in ("vision_config", "text_config", "encoder")))
    return next((value for part in parts if (value := getattr(part, name, None)) is not None), None)


def _image(model: nn.Module) -> tuple[int, ...] | None:
    """Return channels, height and width that a model of timm or torchvision was built for."""
    first = next((each.weight for each in model.modules() if isinstance(each, nn.Conv2d)), None)
    cfg = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if hasattr(cfg, "get") and cfg.get("input_size") is not None:
        channels, *size = cfg.get("input_size")
        built = pair(getattr(getattr(model, "patch_embed", None), "img_size", None))
        return (channels if first is None else first.shape[1], *(built or size))
    size = pair(getattr(model, "image_size", None))  # torchvision's ViT
    return None if size is None or first is None else (first.shape[1], *size)


GIVEN = (  # how several inputs are given
    "give several inputs as a tuple or a dictionary, and one that is a tuple or list itself in a tuple of one, "
    "(batch,); a LightningModule says what it takes with a method probe_inputs(batch)"
)


@contextmanager
def explain_failure(model: nn.Module, *, given: bool = True, bugs: bool = False, cut: str = "") -> Iterator[None]:
    """Say in one line that a model fails on its inputs: why, in which module, and what the host library would give.

    Where nobody has ``given`` the inputs, they are the host's own example. What was raised by code outside of installed
    libraries keeps its own error, but for ``bugs``, and where the inputs are ``cut``, which is said.

    Raises:
        StructuredInitError: what the model raises is its cause.
    """
    try:
        yield
    except StructuredInitError:
        raise
    except Exception as error:
        frames = [
            frame
            for frame, _ in walk_tb(error.__traceback__)
            if frame.f_code.co_name not in ("__torch_dispatch__", "operate")
        ]
        if given and not bugs and not cut and not frames[-1].f_code.co_filename.startswith(LIBRARIES):
            raise
        names = {id(module): name for name, module in named_plain_modules(model)}
        owners = (id(frame.f_locals.get("self")) for frame in frames)
        inner = [names[owner] for owner in owners if owner in names]
        if absent := [plain_name(name, model) for name, each in model.named_parameters() if each.is_meta]:
            way = "has no memory: call model.to_empty(...) first"
            raise StructuredInitError(f"'{absent[0]}' is on the meta device and {way}") from error
        why = not_finite(model) or " ".join(str(error).split()) or type(error).__name__
        why = re.sub(r", but expected one of: \* .*", "", why)  # every signature that torch knows
        last = dict(named_plain_modules(model)).get(inner[-1]) if inner else None
        if why == "index out of range in self" and isinstance(last, nn.Embedding):
            why = f"an index is not from 0 to {last.num_embeddings - 1:,}"
        where = f" (in '{inner[-1]}')" if inner and inner[-1] else ""
        takes = format_inputs(host_inputs(model))
        fits = f"; it takes {takes}" if given and takes else ""
        if given and not any(inner) and re.search(r"forward\(\) (missing|takes|got an unexpected keyword)", why):
            fits = f": {GIVEN}{fits}"
        if not has_forward(find_runnable(model)):
            why, where, fits = "it has no forward: write one, or give the part of it that runs", "", ""
        what = "the batch" if given else f"the host's own example, {takes}"
        raise StructuredInitError(f"{type(model).__name__} fails on {what}: {why}{where}{fits}{cut}") from error


def run_with(model: nn.Module, values: Mapping[int, Tensor], inputs: Inputs) -> Any:
    """Return what a model gives with ``values`` in place of its own tensors, which are named by their ``id``.

    A tied tensor is replaced wherever it is held. A module that is registered twice is visited once: torch's
    ``functional_call`` would else put back what was lent.
    """
    lent = {
        f"{name}.{key}" if name else key: values[id(own)]
        for name, module in model.named_modules()
        for key, own in (*module._parameters.items(), *module._buffers.items())
        if id(own) in values
    }
    return functional_call(model, lent, *for_one_pass(inputs), tie_weights=False)


def with_fields(output: Any) -> Any:
    """Return what a model gives, dataclasses and torch's distributions as dictionaries: torch looks into neither."""

    def opened(leaf: Any) -> Any:
        if isinstance(leaf, Distribution):  # which may hold one tensor under two names
            held = {id(each): each for each in vars(leaf).values() if isinstance(each, (Tensor, Distribution))}
        elif is_dataclass(leaf) and not isinstance(leaf, (Mapping, type)):  # as transformers' outputs are both
            held = {each.name: getattr(leaf, each.name) for each in fields(leaf)}
        else:
            return leaf
        return tree_map(opened, held)

    return tree_map(opened, output)


def format_inputs(inputs: Inputs | None) -> str:
    """Return inputs as one would write them, ``torch.randn(2, 3, 32, 32)``; nothing where there are none."""

    def drawn(leaf: Any) -> str:
        if not leaf.is_floating_point():
            return f"torch.zeros({', '.join(map(str, leaf.shape))}, dtype=torch.long)"
        return f"torch.randn({', '.join(map(str, leaf.shape))})"

    if inputs is None:
        return ""
    args, kwargs = inputs
    named = ", ".join(f"'{name}': {drawn(each)}" for name, each in kwargs.items())
    return f"{{{named}}}" if named else ", ".join(map(drawn, args))


def pair(size: Any) -> tuple[int, int] | None:
    """Return (height, width) of a size that is one number or two; ``None`` of anything else."""
    if isinstance(size, int):
        return size, size
    return tuple(size) if isinstance(size, tuple | list) and len(size) == 2 else None


# Looking at a model without leaving a trace: modes, gradients, random states and compiled code stay as they were.

ONE_AT_A_TIME = threading.RLock()  # random states are the process', and modes and hooks those of the model
BUFFER = 2**22  # numbers from which on a buffer, such as a mask of 2048² tokens, is not copied
_DEFAULT: ContextVar[torch.device | None] = ContextVar("default device outside", default=None)


@contextmanager
def cpu_by_default() -> Iterator[None]:
    """Make what is made inside on the CPU where it does not say otherwise, whatever the default device is outside.

    A model that is run inside (see :func:`undisturbed`) has a default again: the device that it is on.
    """
    outside = torch.get_default_device()
    if outside.type == "cpu":
        yield
        return
    token = _DEFAULT.set(outside)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _DEFAULT.reset(token)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode, in which reading a spectrally normed weight changes nothing, one at a time.

    torch's inference fast path is off: it makes nested tensors of padded ones, which many functions do not take.
    """
    with ONE_AT_A_TIME, ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def undisturbed(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Run the block in evaluation mode, eagerly and without gradients, and restore everything afterwards.

    Inside, random draws start from ``seed``, so that a model which draws in evaluation mode does so equally each
    time. Of several threads one does so at a time. Restored are the training flag of every module, what was written in
    place into buffers of fewer than 2²² numbers, and the python, numpy, torch and accelerator random states.
    """

    def restore(buffer: Tensor, version: int, before: Tensor) -> None:
        written = buffer._version != version or torch.is_inference_mode_enabled()  # which counts no versions
        if written and buffer.shape == before.shape:
            buffer.copy_(before)

    with evaluating(model), ExitStack() as stack:
        stack.enter_context(own_random_state(model, seed))
        stack.enter_context(torch.no_grad())
        for each in (b for b in model.buffers() if not (b.is_inference() or is_lazy(b) or b.numel() >= BUFFER)):
            stack.callback(restore, each, each._version, each.clone())
        stack.enter_context(eager())
        if (_DEFAULT.get() or torch.get_default_device()).type != "cpu":
            stack.enter_context(next((each.device for each in model.parameters()), torch.device("cpu")))
        yield


@contextmanager
def norms_as_in_training(model: nn.Module) -> Iterator[None]:
    """Around :func:`undisturbed`: norms whose running statistics are not yet the data's normalize as in training.

    These are batch norms, and instance norms that track, whose first mean and variance, 0 and 1, are half or more of
    what they hold by their momentum of today; but not those that a model in training keeps in evaluation mode. A single
    number has no statistics. Several processes would have to agree on theirs.
    """

    def choose(module: _NormBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        if given is not None and given.ndim > 1:
            beside = given.shape[2:] if isinstance(module, _InstanceNorm) else (len(given), *given.shape[2:])
            module.training = math.prod(beside) > 1
            module.track_running_stats = not module.training  # what is not tracked is neither read nor written

    with ExitStack() as stack:
        for module in model.modules():
            kept = model.training and not module.training
            kept |= isinstance(module, nn.SyncBatchNorm) and torch.distributed.is_initialized()
            if isinstance(module, _NormBase) and not kept and _hardly_seen(module):
                stack.callback(module.register_forward_pre_hook(choose, with_kwargs=True).remove)
                stack.callback(setattr, module, "track_running_stats", module.track_running_stats)
        yield


def _hardly_seen(norm: _NormBase) -> bool:
    mean, variance, often = norm.running_mean, norm.running_var, norm.num_batches_tracked
    if not (type(mean) is type(variance) is Tensor) or mean.is_meta:
        return False
    if not mean.any() and variance.eq(1).all():
        return True
    batches = 0 if often is None else int(often)  # 0 as well in old checkpoints, and of instance norms
    return batches > 0 and bool(norm.momentum) and (1 - norm.momentum) ** batches >= 0.5


def eager() -> AbstractContextManager[object]:
    """Run the block without compiled code, which neither runs hooks added later nor shows its calls."""
    # Where nothing was compiled, the import of dynamo alone would take longer than the probe.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def own_random_state(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed every global random state for the block, also of the accelerators of ``model``, and restore them all.

    Those of a model without parameters, which is still to be built, are all.
    """
    python, numpy = random.getstate(), np.random.get_state()
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    if not devices and torch.cuda.is_initialized():
        accelerators = list(range(torch.cuda.device_count()))
    try:
        with torch.random.fork_rng(accelerators, device_type="cuda"):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # torch.manual_seed would also seed the accelerators that are not restored.
            torch.default_generator.manual_seed(seed)
            for index in accelerators:
                torch.cuda.default_generators[index].manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def without_hooks(module: nn.Module) -> Iterator[None]:
    """Let nobody who listens to the model hear of it; shards are gathered by hooks, which stay."""
    if any(hasattr(parameter, "full_tensor") for parameter in module.parameters()):
        yield
        return
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    kept = [(part, kind, getattr(part, kind)) for part in module.modules() for kind in kinds]
    for part, kind, _ in kept:
        setattr(part, kind, OrderedDict())
    try:
        yield
    finally:
        for part, kind, hooks in kept:
            setattr(part, kind, hooks)
