"""Whether attention hides the tokens behind each token, read from its maps."""

from __future__ import annotations

from collections.abc import Iterable

from jaxtyping import Float
from torch import Tensor

FEW = 1 << 16  # numbers of maps that are looked at together: copies of more leave the processor's cache


def hides_what_follows(maps: Float[Tensor, "batch queries keys"]) -> bool | None:
    """Say whether every map is exactly zero above its diagonal, as under any causal mask.

    A row of equal entries says nothing: that is what a softmax makes of a token, such as padding, that is kept from
    seeing anything.

    Args:
        maps: the attention of all heads and samples.

    Returns:
        The answer; ``None`` where queries and keys are not the same number of tokens, where there is one token alone,
        and where every row but the last is of equal entries.
    """
    if maps.shape[-2] != maps.shape[-1] or maps.shape[-1] < 2:
        return None
    known = False
    for few in maps.split(max(1, FEW // maps[0].numel())):  # one map that shows what follows is enough
        telling = few.amax(-1) > few.amin(-1)
        if (few.triu(1).any(-1) & telling).any():
            return False
        known |= bool(telling[..., :-1].any())
    return known or None


def agreed(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all of several answers are yes, of those that say anything; ``None`` where none does."""
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None
