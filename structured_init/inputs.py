"""What a model can be run on where nobody gave a batch: what its host library says about its own inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from inspect import signature
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn, strided
from torch.distributions import Distribution
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules, wrapped_child

LENGTH = 12  # tokens of a text
SOUND = 16000  # numbers of a sound, a second of it
LIBRARIES = str(Path(torch.__file__).parents[1])  # where torch is, timm and transformers are installed
VOCABULARY = 100  # where a configuration names none
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def as_inputs(*args: Any, **kwargs: Any) -> Inputs:
    """Return what a model is called with: one tuple, list or mapping holds several inputs, in order or by name."""
    given = args[0] if len(args) == 1 else args
    if isinstance(given, Mapping):
        return (), {**given, **kwargs}
    return (tuple(given) if isinstance(given, tuple | list) else args), kwargs


def as_batch(model: nn.Module, inputs: Inputs) -> tuple[Any, ...] | dict[str, Any]:
    """Return what a model is called with in one tuple or dictionary: beside named inputs, all have names."""
    args, kwargs = inputs
    if not kwargs:
        return args
    return dict(zip(signature(find_runnable(model).forward).parameters, args, strict=False)) | kwargs


def for_one_pass(inputs: Inputs) -> Inputs:
    """Return inputs in lists and dictionaries of their own: a model may fill them, as a cache."""
    return tree_map(lambda leaf: leaf, inputs)


def first_samples(inputs: Inputs, samples: int, begin: int = 0) -> Inputs:
    """Cut every tensor of a model's arguments whose first axis has the batch's length: that of the first tensor.

    Beside one that is sparse or nested, which has no parts, nothing is cut.
    """
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if any(leaf.layout != strided or leaf.is_nested for leaf in leaves):
        return inputs
    batch = next((len(leaf) for leaf in leaves if leaf.ndim), 0)

    def cut(leaf: Tensor) -> Tensor:
        return leaf[begin : begin + samples] if leaf.shape[:1] == (batch,) else leaf

    return tree_map_only(Tensor, cut, inputs)


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
