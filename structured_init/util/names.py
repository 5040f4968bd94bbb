"""Plain names: what a module or a parameter is called, whatever a model has been wrapped in."""

from __future__ import annotations

import functools
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

# Class of a wrapper → the child in which it keeps what it wraps; by path, so that nothing is imported to look.
WRAPPERS = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper": "_checkpoint_wrapped_module",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "_fsdp_wrapped_module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "lightning.fabric.wrappers._FabricModule": "_forward_module",
    "deepspeed.runtime.engine.DeepSpeedEngine": "module",
    "timm.utils.model_ema.ModelEmaV2": "module",
    "timm.utils.model_ema.ModelEmaV3": "module",
    "peft.peft_model.PeftModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "peft.tuners.tuners_utils.BaseTunerLayer": "base_layer",
}
# These mean nothing else, so they are dropped also from a name whose model is not at hand.
UNMISTAKABLE = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_original_module"})


def wrapped_child(module: nn.Module) -> str | None:
    """Return the child in which a wrapper keeps what it wraps; ``None`` for any other module."""
    return next((child for child in _children(type(module)) if child in module._modules), None)


@functools.cache
def _children(cls: type) -> tuple[str, ...]:
    """Return the names under which a class may keep what it wraps."""
    paths = (f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__)
    return tuple(WRAPPERS[path] for path in paths if path in WRAPPERS)


def plain_name(name: str, model: nn.Module | None = None) -> str:
    """Return the name of a module, parameter or buffer without what wrappers put into it.

    Of ``"module.base_model.model.blocks.0.attn.q_proj.base_layer.weight"`` that is ``"blocks.0.attn.q_proj.weight"``.
    Wrappers are compilation, activation checkpointing, (sharded) data parallelism, averaging and PEFT. They are known
    by their class, so a user's own child called ``module`` or ``model`` keeps its name. Without the ``model`` that has
    the name, only names that wrappers alone give (``UNMISTAKABLE``) are known to be a wrapper's.
    """
    if model is None:
        return ".".join(part for part in name.split(".") if part not in UNMISTAKABLE)
    parts = []
    here: nn.Module | None = model
    for part in name.split("."):
        child = wrapped_child(here)
        while child is not None and part not in here._modules:  # wrappers leave themselves out of their own names
            here = here._modules[child]
            child = wrapped_child(here)
        if part not in UNMISTAKABLE and part != child:
            parts.append(part)
        here = here._modules.get(part, here)
    return ".".join(parts)


def plain_names(model: nn.Module) -> Callable[[str], str]:
    """Return what :func:`plain_name` is for many names of one model, looked at once for wrappers."""
    wrapped = any(wrapped_child(module) is not None for module in model.modules())
    return functools.partial(plain_name, model=model if wrapped else None)


def named_plain_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return modules in order under their plain names, each once; wrappers are left out."""
    plain = plain_names(model)
    return [(plain(name), module) for name, module in model.named_modules() if wrapped_child(module) is None]


def by_depth(names: Iterable[str]) -> list[str]:
    """Sort names that begin alike, up to the first number, by their numbers: a file has layer 10 before layer 2.

    What begins otherwise stays where it was: a decoder after its encoder, a head after the blocks.
    """
    parts = {name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)] for name in names}
    starts = list(dict.fromkeys(start for start, *_ in parts.values()))
    return sorted(parts, key=lambda name: (starts.index(parts[name][0]), parts[name]))


def within(inner: str, outer: str) -> bool:
    """Say whether a module is another one or lies in it."""
    return inner == outer or outer == "" or inner.startswith(f"{outer}.")


def outwards(name: str) -> Iterator[str]:
    """Yield a name and those of all modules around it, the innermost first; the whole model's, which is "", last."""
    yield name
    while name:
        name = name.rpartition(".")[0]
        yield name


def is_stack(module: nn.Module) -> bool:
    """Say whether a module is a list of layers: of one class where it is an ``nn.Sequential``; embeddings are none."""
    children = list(module.children())
    if isinstance(module, nn.ModuleList):
        return any(not isinstance(child, nn.Embedding) for child in children)
    return isinstance(module, nn.Sequential) and len(children) > 1 and len({class_of(child) for child in children}) == 1


def block_of(name: str) -> str:
    """Return the block of a parameter: ``blocks.0`` of ``blocks.0.attn.qkv.weight``, ``head`` of ``head.bias``."""
    found = re.match(r"(.*?\.\d+)\..+|(.+)\.(?:weight|bias)$", name)  # up to the first number
    return (found[1] or found[2]) if found else name


def folded_name(blocks: Sequence[str]) -> str:
    """Return the name of several blocks: the number in which they differ as a range, or in brackets where some lack."""
    if len(blocks) == 1:
        return blocks[0]
    for match in re.finditer(r"\d+", blocks[0]):
        before, after = re.escape(blocks[0][: match.start()]), re.escape(blocks[0][match.end() :])
        found = [re.fullmatch(rf"({before})(\d+)({after})", each) for each in blocks]
        if all(found):
            ranges = _ranges([int(each[2]) for each in found])
            return f"{found[0][1]}{f'({ranges})' if ', ' in ranges else ranges}{found[0][3]}"
    return f"{blocks[0]} … {blocks[-1]} ({len(blocks)} in all)"


def _ranges(numbers: Sequence[int]) -> str:
    """Return each run of consecutive numbers as ``2–5``, or as itself where it is one."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def wrapped(text: str, width: int = 120) -> str:
    """Return a text with no line wider than ``width``; what follows a name and two blanks is continued below itself."""
    wrapper = textwrap.TextWrapper(width, break_on_hyphens=False, break_long_words=False)
    lines = []
    for line in text.splitlines():
        name = re.match(r"\S.{0,38}?  +", line)
        wrapper.subsequent_indent = " " * (len(name[0]) if name else 2)
        lines += wrapper.wrap(line) or [""]
    return "\n".join(lines)


def short_names(names: Sequence[str]) -> list[str]:
    """Return the parts of layer names at which one leaves others: ``blocks.0.attn``, ``blocks.1.attn`` → ``0``, ``1``.

    Of two towers ``vision.encoder.layers.0.attn`` and ``text.layers.0.attn`` become ``vision.0`` and ``text.0``. A word
    that stays keeps the number after it: beside ``cross``, ``blocks.0.attn`` is ``blocks.0``. No name comes twice.
    """
    parts = [name.split(".") for name in names]
    # What may follow on a beginning; a name that ends there is one of these too.
    follow: dict[tuple[str, ...], set[str]] = {}
    for part in parts:
        for place, each in enumerate([*part, ""]):
            follow.setdefault(tuple(part[:place]), set()).add(each)
    found = []
    for name, part in zip(names, parts, strict=True):
        leaves = [len(follow[tuple(part[:place])]) > 1 for place in range(len(part))]
        for place, (before, each) in enumerate(itertools.pairwise(part), 1):
            leaves[place] |= leaves[place - 1] and each.isdecimal() and not before.isdecimal()
        short = ".".join(itertools.compress(part, leaves))
        found.append(name if short in ("", *names) else short)
    return found
