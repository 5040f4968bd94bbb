"""Whether tokens see those behind them."""

from __future__ import annotations

from structured_init.sites.attention import AttentionSite


def is_causal(site: AttentionSite, *, alibi: bool = False) -> bool | None:
    """Say whether an attention layer hides the tokens behind each token; ``None`` where nothing tells.

    What its layout says comes first: of attention that ran in a forward pass, that is what its maps show. Then what
    its module says by ``is_causal``, as transformers' attention does. Layers with ALiBi do not, and language models
    alone have it.

    Args:
        site: the layer.
        alibi: whether it has ALiBi.
    """
    if site.layout.causal is not None:
        return site.layout.causal
    said = getattr(getattr(site.module, "self", site.module), "is_causal", None)
    return said if isinstance(said, bool) else (True if alibi else None)
