"""By which positions an attention layer can tell its tokens apart: those added to tokens, and those in its logits."""

from __future__ import annotations

from dataclasses import dataclass

from structured_init.plan import Weights
from structured_init.sites.alibi import Alibi, alibi
from structured_init.sites.attention import AttentionSite, enclosing
from structured_init.sites.position import PositionSite, position_sites, token_layouts
from structured_init.sites.relative import RelativeBias, relative_bias
from structured_init.sites.rotary import Rotary, rotary


@dataclass(frozen=True)
class AttentionPositions:
    """The positions of one attention layer, by kind; a host mostly has one.

    Attributes:
        absolute: positions added to its tokens, learned or sinusoidal.
        relative: a table of biases.
        rotary: turned queries and keys.
        alibi: linear biases.
    """

    absolute: PositionSite | None = None
    relative: RelativeBias | None = None
    rotary: Rotary | None = None
    alibi: Alibi | None = None

    @property
    def kinds(self) -> list[str]:
        """The names of those that there are."""
        return [name for name in ("absolute", "relative", "rotary", "alibi") if getattr(self, name) is not None]


def attention_positions(site: AttentionSite, weights: Weights) -> AttentionPositions:
    """Return the positions of an attention layer; nothing in it where the host has none (NoPE) or none that is known.

    Args:
        site: an attention layer.
        weights: the overlay that the site was found in.
    """
    around = enclosing(token_layouts(weights.model), site.name)
    tables = {id(each.tensor): each for each in position_sites(weights)}
    own = site.layout.tokens  # of a window the model's own positions are not known to be the tokens'
    absolute = None if around is None or own is not None else tables.get(id(around.positions))
    if absolute is not None and absolute.embed_dim != site.embed_dim:
        absolute = None  # of a head's width: RoFormer turns queries and keys by them
    return AttentionPositions(
        absolute=absolute,
        relative=relative_bias(site, weights),
        rotary=rotary(site, weights) if site.layout.rope else None,
        alibi=alibi(site),
    )
