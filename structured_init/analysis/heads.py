"""Scores of heads that trained language models have in common: pure functions of maps and tokens.

Letters: B batch, H heads, N tokens.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from structured_init.analysis.statistics import Maps, PerHead, checked_maps, seen_pairs, shares, square
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError

Marked = Bool[Tensor, "_ _ _"]  # (B, N, N)
Tokens = Int[Tensor, "_ _"]  # (B, N)
Queries = Bool[Tensor, "_ _"]  # (B, N); what does not fit the maps is refused with a line of our own

# What each score means, for tables and figure titles.
HEAD_SCORES: dict[str, str] = {
    "previous_token_score": "previous-token score: attention on the token before",
    "induction_score": "induction score: attention on what followed an equal token",
}


def previous_token_score(maps: Maps) -> PerHead:
    """Return the mean attention on the token before, mean_t A_{t, t − 1}, over all tokens that have one.

    Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022 (arXiv 2209.11895). One
    for a head that looks there alone.

    Returns:
        (H,); nan of a single token.
    """
    tokens = square(checked_maps(maps)).shape[-1]
    before = torch.ones(tokens - 1, dtype=torch.bool, device=maps.device).diag(-1)
    return _mean_on(maps, before.expand(len(maps), -1, -1))


def induction_score(maps: Maps, tokens: Tokens, queries: Queries | None = None) -> PerHead:
    """Return the mean attention on what followed an equal token before, over all tokens that have an equal before.

    mean_t Σ_s A_ts over the marked s of ``prefix_matches``: the prefix-matching score of Olsson et al. 2022 (arXiv
    2209.11895). They take it on random tokens that come twice (``repeated_tokens``), where each token of the second
    half has one such place; the function takes any text. ``queries`` says which tokens are asked, all where ``None``.

    Returns:
        (H,); nan where no token is asked that has an equal before.

    Raises:
        StructuredInitError: tokens and maps do not fit.
    """
    check_shape(maps, tokens, "tokens")
    return _mean_on(maps, prefix_matches(tokens), queries)


def prefix_matches(tokens: Tokens) -> Marked:
    """Mark, for every token t, the tokens s < t that follow an equal one: x_{s − 1} = x_t.

    A token that equals the one before it would mark itself; looking at oneself is not looking back, so it does not
    (TransformerLens's pattern of induction heads has it, unless ``exclude_current_token`` is set).
    """
    equal = tokens[:, :, None] == tokens[:, None, :]
    return torch.nn.functional.pad(equal[:, :, :-1], (1, 0)).tril(-1)


def _mean_on(maps: Maps, marked: Marked, queries: Queries | None = None) -> PerHead:
    """Return the mean over the tokens t that have any marked s of Σ_s A_ts over these; nan where there are none."""
    if queries is not None:
        check_shape(maps, queries, "queries")
        marked = marked & queries[:, :, None].to(marked.device)
    marked = marked.to(maps.device) & seen_pairs(maps)[:, 0]
    total = torch.einsum("bhts,bts->h", shares(maps).double(), marked.double())
    count = marked.any(dim=-1).sum().double()
    return torch.where(count > 0, total / count.clamp(min=1), math.nan).float()


def repeated_tokens(
    batch: int, length: int, vocabulary: Int[Tensor, " words"], *, generator: torch.Generator
) -> Tokens:
    """Draw random tokens and repeat them: sequences whose second half has nothing to go by but the first.

    No token comes twice within a half while the vocabulary, the token numbers to draw from, suffices. Where N is odd,
    the first token comes a third time.
    """
    check_whole("repeated_tokens", batch=batch)
    check_whole("repeated_tokens", least=2, length=length)
    half = length // 2
    if len(vocabulary) >= half:
        drawn = torch.rand(batch, len(vocabulary), generator=generator).argsort(dim=1)[:, :half]
    else:
        drawn = torch.randint(len(vocabulary), (batch, half), generator=generator)
    return vocabulary[drawn.to(vocabulary.device)].repeat(1, 3)[:, :length]


def check_shape(maps: Maps, given: Tensor, what: str) -> None:
    """Refuse what is not (B, N) of the maps."""
    got, expected = tuple(given.shape), (maps.shape[0], maps.shape[-1])
    if got != expected:
        raise StructuredInitError(
            f"{what} of shape {got} do not fit maps of {expected} samples × tokens: "
            "capture_attention keeps the first max_samples of a batch, all with max_samples=None"
        )
