"""What a model can be run on where nobody gave a batch: what its host library says about its own inputs."""

from __future__ import annotations

import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
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
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules, wrapped_child

LENGTH = 12  # tokens of a text
SOUND = 16000  # numbers of a sound, a second of it
LIBRARIES = str(Path(torch.__file__).parents[1])  # where torch is, timm and transformers are installed
VOCABULARY = 100  # where a configuration names none
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def as_inputs(*args: Any, **kwargs: Any) -> Inputs:
    """Return what a model is called with: one tuple, list or mapping holds several inputs, in order or by name."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        return (), {**args[0], **kwargs}
    if len(args) == 1 and isinstance(args[0], tuple | list):
        return tuple(args[0]), kwargs
    return args, kwargs


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
    return "forward" in vars(model) or getattr(type(model).forward, "__module__", None) not in BARE


def find_runnable(model: nn.Module) -> nn.Module:
    """Return a model, or the only part with parameters of one that has no forward."""
    while not has_forward(model):
        parts = [child for child in model.children() if any(True for _ in child.parameters())]
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
    model = _without_wrappers(model)
    config = getattr(model, "config", None)
    named = config is not None and hasattr(model, "main_input_name")
    sizes = _sizes_of_transformers(model, config, length) if named else _image(model)
    if sizes is None:
        return None
    weight = next((each for each in model.parameters() if each.is_floating_point()), torch.zeros(()))
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, size in sizes.items():
        if name in TEXTS:
            vocabulary = _setting(config, "vocab_size") or VOCABULARY
            tokens = torch.randint(min(3, vocabulary - 1), vocabulary, (batch, *size), generator=generator)
            drawn[name] = tokens.to(weight.device)
        else:
            drawn[name] = torch.randn(batch, *size, generator=generator).to(weight.device, weight.dtype)
    return ((), drawn) if named else (tuple(drawn.values()), {})


TEXTS = ("input_ids", "decoder_input_ids")
Sizes = dict[str, tuple[int, ...]]  # name of an input → its size, without the batch


def _without_wrappers(model: nn.Module) -> nn.Module:
    model = find_runnable(model)
    child = wrapped_child(model)
    return model if child is None else _without_wrappers(model._modules[child])


def _sizes_of_transformers(model: nn.Module, config: Any, length: int) -> Sizes | None:
    """Return the sizes of a model's main input, and of what else it cannot do without."""
    names = [model.main_input_name]
    if hasattr(model, "get_text_features") and hasattr(model, "get_image_features"):  # CLIP and its kin
        names = ["pixel_values", "input_ids"]
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    image, bins = pair(_setting(config, "image_size")), getattr(config, "num_mel_bins", None)
    frames, places = getattr(config, "max_length", None), getattr(config, "max_source_positions", None)
    sizes = {
        **dict.fromkeys(TEXTS, (_tokens(model, config, length),)),
        "pixel_values": image and (_setting(config, "num_channels") or 3, *image),
        "input_values": (frames, bins) if frames and bins else (SOUND,),
        "input_features": bins and places and (bins, 2 * places),
    }
    found = {name: sizes[name] for name in names if sizes.get(name)}
    return found if len(found) == len(names) else None


def _tokens(model: nn.Module, config: Any, length: int) -> int:
    """Return how many tokens a model takes, at most ``length``."""
    longest = _setting(config, "max_position_embeddings") or 0
    if longest <= 0:  # XLNet's −1 is no end
        return length
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == longest and module.padding_idx is not None:
            longest -= module.padding_idx + 1  # RoBERTa's positions begin behind that of padding
            break
    return min(length, longest)


def _setting(config: Any, name: str) -> Any:
    """Return a setting of a configuration, or of the part of it that has it."""
    for part in (config, *(getattr(config, part, None) for part in ("vision_config", "text_config", "encoder"))):
        if getattr(part, name, None) is not None:
            return getattr(part, name)
    return None


def _image(model: nn.Module) -> Sizes | None:
    """Return channels, height and width that a model of timm or torchvision was built for."""
    first = next((each for each in model.modules() if isinstance(each, nn.Conv2d)), None)
    channels = None if first is None else first.in_channels
    size = pair(getattr(model, "image_size", None))  # torchvision's ViT
    cfg = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if hasattr(cfg, "get") and cfg.get("input_size") is not None:  # timm's: channels, height, width of its weights
        size = pair(getattr(getattr(model, "patch_embed", None), "img_size", None)) or cfg.get("input_size")[1:]
        channels = channels or cfg.get("input_size")[0]
    return {"image": (channels, *size)} if size and channels else None


GIVEN = (  # how several inputs are given
    "give several inputs as a tuple or a dictionary, and one that is a tuple or list itself in a tuple of one, "
    "(batch,); a LightningModule says what it takes with a method probe_inputs(batch)"
)


@contextmanager
def explain_failure(model: nn.Module, *, given: bool = True, bugs: bool = False, cut: str = "") -> Iterator[None]:
    """Say in one line that a model fails on its inputs: why, in which module, and what the host library would give.

    Where nobody has ``given`` the inputs, they are the host's own example; ``cut`` says that they are a part of them.
    What code outside of installed libraries raises on given inputs keeps its own error, but for ``bugs``.

    Raises:
        StructuredInitError: what the model raises is its cause.
    """
    try:
        yield
    except StructuredInitError:
        raise
    except Exception as error:
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        if given and not bugs and not frames[-1].f_code.co_filename.startswith(LIBRARIES):
            raise
        names = {id(module): name for name, module in named_plain_modules(model)}
        owners = [id(frame.f_locals.get("self")) for frame in frames]
        inner = [names[owner] for owner in owners if names.get(owner)]
        takes = format_inputs(host_inputs(model))
        what = "the batch" if given else f"the host's own example, {takes}"
        why = " ".join(str(error).split()) or type(error).__name__
        if any(parameter.is_meta for parameter in model.parameters()):
            why = "it is on the meta device and has no memory: call model.to_empty(...) first"
        parts = [f"{type(model).__name__} fails on {what}: {why}" + (f" (in '{inner[-1]}')" if inner else "")]
        if given and isinstance(error, TypeError) and not inner:
            parts.append(GIVEN)
        if given and takes:
            parts.append(f"it takes {takes}")
        raise StructuredInitError("; ".join(parts) + cut) from error


def run_with(model: nn.Module, values: Mapping[int, Tensor], inputs: Inputs) -> Any:
    """Return what a model gives with ``values`` in place of its own tensors, which are named by their ``id``.

    A tied tensor is replaced wherever it is held. A module that is registered twice is visited once: torch's
    ``functional_call`` would else put back what was lent.
    """
    lent = {}
    for name, module in model.named_modules():
        for key, own in (*module._parameters.items(), *module._buffers.items()):
            if id(own) in values:
                lent[f"{name}.{key}".lstrip(".")] = values[id(own)]
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
    args, kwargs = inputs or ((), {})
    if kwargs:
        named = ", ".join(f"'{name}': {_drawn(each)}" for name, each in kwargs.items())
        return f"{{{named}}}"
    return ", ".join(map(_drawn, args))


def _drawn(tensor: Tensor) -> str:
    size = ", ".join(map(str, tensor.shape))
    return f"torch.randn({size})" if tensor.is_floating_point() else f"torch.zeros({size}, dtype=torch.long)"


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
        stack.enter_context(own_random_state(seed))
        stack.enter_context(torch.no_grad())
        for buffer in model.buffers():
            if buffer.numel() < BUFFER and not buffer.is_inference():
                stack.callback(restore, buffer, buffer._version, buffer.clone())
        stack.enter_context(eager())
        if (_DEFAULT.get() or torch.get_default_device()).type != "cpu":
            stack.enter_context(next((each.device for each in model.parameters()), torch.device("cpu")))
        yield


@contextmanager
def norms_as_in_training(model: nn.Module) -> Iterator[None]:
    """Around :func:`undisturbed`: norms whose running statistics are not yet the data's normalize as in training.

    These are batch norms, and instance norms that track, whose first mean and variance, 0 and 1, are half or more of
    what they hold; but not those that a model in training keeps in evaluation mode. A single number has no statistics.
    Several processes would have to agree on theirs.
    """

    def choose(module: _NormBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        if given is not None and given.ndim > 1:
            beside = given[0, 0] if isinstance(module, _InstanceNorm) else given[:, 0]  # what shares a mean
            module.training = beside.numel() > 1
            module.track_running_stats = not module.training  # what is not tracked is neither read nor written

    with ExitStack() as stack:
        for module in model.modules():
            if not isinstance(module, _NormBase) or not _hardly_seen(module):
                continue
            kept = model.training and not module.training
            agrees = isinstance(module, nn.SyncBatchNorm) and torch.distributed.is_initialized()
            if not (kept or agrees):
                stack.callback(module.register_forward_pre_hook(choose, with_kwargs=True).remove)
                stack.callback(setattr, module, "track_running_stats", module.track_running_stats)
        yield


def _hardly_seen(norm: _NormBase) -> bool:
    """Say whether (1 − momentum)ⁿ, the share of the first statistics after n batches, is half or more."""
    mean, variance = norm.running_mean, norm.running_var
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor) or mean.is_meta:
        return False
    if not mean.any() and variance.eq(1).all():
        return True
    batches = 0 if norm.num_batches_tracked is None else int(norm.num_batches_tracked)  # 0 of instance norms as well
    return batches > 0 and bool(norm.momentum) and (1 - norm.momentum) ** batches >= 0.5


def eager() -> AbstractContextManager[object]:
    """Run the block without compiled code, which neither runs hooks added later nor shows its calls."""
    # Where nothing was compiled, the import of dynamo alone would take longer than the probe.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Seed every global random state for the block, of accelerators in use as well, and restore them all."""
    python, numpy = random.getstate(), np.random.get_state()
    accelerators = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(accelerators, device_type="cuda"):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # torch.manual_seed would also seed accelerators that are begun later, which nobody restores.
            torch.default_generator.manual_seed(seed)
            for index in accelerators:
                torch.cuda.default_generators[index].manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Let nobody who listens to the model hear of it; shards are gathered by hooks, which stay."""
    sharded = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    with ExitStack() as stack:
        for module in () if sharded else model.modules():
            for kind in ("_forward_hooks", "_forward_pre_hooks"):
                stack.callback(setattr, module, kind, getattr(module, kind))
                setattr(module, kind, OrderedDict())
        yield
