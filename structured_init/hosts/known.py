"""Classes of attention that are known: each by a function that says where it keeps its matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

from structured_init.hosts.layout import AttentionLayout, TokenLayout, checked_layout
from structured_init.hosts.registry import Registry
from structured_init.util.arguments import check_grid, check_whole

ATTENTION: Registry[tuple[AttentionLayout, TokenLayout | None]] = Registry()
Describe = Callable[[Any], AttentionLayout]


def register_attention(
    cls: type[nn.Module] | str, *, grid: tuple[int, int] | None = None, prefix_tokens: int = 0
) -> Callable[[Describe], Describe]:
    """Make an attention class known, by decorating the function that says where it keeps its matrices.

    Args:
        cls: the class, or its path ``"package.module.Class"`` so that the package need not be imported.
        grid: (rows, columns) of its tokens, where the model around it does not tell.
        prefix_tokens: tokens before the grid.

    Raises:
        StructuredInitError: the class is neither a class nor a path; the grid or the tokens before it are none.

    A layout that the module contradicts is refused when it is used (``hosts.layout.checked_layout``). The function is
    asked once for each module in one initialization.

    Example:
        >>> @register_attention(MyAttention, grid=(8, 8))
        ... def my_attention(module):
        ...     heads, head_dim = module.num_heads, module.head_dim
        ...     return AttentionLayout(
        ...         query=Projection(module.to_q.weight, heads, head_dim),
        ...         key=Projection(module.to_k.weight, heads, head_dim),
        ...         value=Projection(module.to_v.weight, heads, head_dim),
        ...         output=Projection(module.to_out.weight, heads, head_dim, axis=1),
        ...     )
    """
    check_grid("register_attention", grid)
    check_whole("register_attention", least=0, prefix_tokens=prefix_tokens)
    tokens = TokenLayout(grid, prefix_tokens) if grid is not None or prefix_tokens else None

    def decorate(describe: Describe) -> Describe:
        @wraps(describe)
        def checked(module: nn.Module) -> tuple[AttentionLayout, TokenLayout | None]:
            return checked_layout(describe(module), module), tokens

        ATTENTION.add(cls, checked)
        return describe

    return decorate


def described_attention(module: nn.Module) -> tuple[AttentionLayout, TokenLayout | None] | None:
    """Return what is known of a module by its class; None where nothing is.

    Nothing is known of a module in which a part was replaced by one of another kind, such as a ``qkv`` by LoRA. A
    function of the user's own that fails is heard.
    """
    describe = ATTENTION.find(module)
    if describe is None:
        return None
    try:
        return describe(module)
    except AttributeError:
        if ATTENTION.foreign(module):
            raise
        return None
