"""Whether tokens see those behind them."""

from __future__ import annotations

from structured_init.sites.attention import AttentionSite


def is_causal(site: AttentionSite, *, alibi: bool = False) -> bool:
    """Say whether an attention layer hides the tokens behind each token, as far as its module tells.

    transformers' attention says so by ``is_causal``; layers with ALiBi do not, and language models alone have it.

    Args:
        site: the layer.
        alibi: whether it has ALiBi.
    """
    inner = getattr(site.module, "self", site.module)
    return bool(getattr(inner, "is_causal", alibi))
