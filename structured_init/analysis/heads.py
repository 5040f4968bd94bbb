"""Scores of heads that trained language models have in common: pure functions of maps and tokens.

Letters: B batch, H heads, N tokens, δ an offset. An offset of 1 is the token before, −1 the token after.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from structured_init.analysis.statistics import Maps, PerHead, checked_maps, seen_pairs, shares
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError, shown

Marked = Bool[Tensor, "_ _ _"]  # (B, N, N)
Tokens = Int[Tensor, "_ _"]  # (B, N)
Queries = Bool[Tensor, "_ _"]  # (B, N); what does not fit the maps is refused with a line of our own

# What each score means, for tables and figure titles.
HEAD_SCORES: dict[str, str] = {
    "previous_token_score": "previous-token score: attention on the token before",
    "induction_score": "induction score: attention on what followed an equal token",
}


def previous_token_score(maps: Maps, offset: int = 1, queries: Queries | None = None) -> PerHead:
    """Return the mean attention on the token before, mean_t A_{t, t − δ}, over all tokens that have one at the offset.

    Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022 (arXiv 2209.11895). One
    for a head that looks there alone. δ is negative for tokens after; ``queries`` says which tokens are asked, all
    where ``None``.

    Returns:
        (H,); nan where no token is asked.

    Raises:
        StructuredInitError: the offset leads outside of the context.
    """
    return _mean(*attention_on(maps, at_offset(maps, offset), queries))


def induction_score(
    maps: Maps, tokens: Tokens, queries: Queries | None = None, segments: Tokens | None = None
) -> PerHead:
    """Return the mean attention on what followed an equal token before, over all tokens that have an equal before.

    mean_t Σ_s A_ts over the marked s of ``prefix_matches``: the prefix-matching score of Olsson et al. 2022 (arXiv
    2209.11895). They take it on random tokens that come twice (``repeated_tokens``), where each token of the second
    half has one such place; the function takes any text. ``queries`` says which tokens are asked, all where ``None``;
    ``segments`` is for packed documents, which do not see each other.

    Returns:
        (H,); nan where no token is asked that has an equal before.

    Raises:
        StructuredInitError: tokens and maps do not fit.
    """
    check_shape(maps, tokens, "tokens")
    return _mean(*attention_on(maps, prefix_matches(tokens, segments), queries))


def prefix_matches(tokens: Tokens, segments: Tokens | None = None) -> Marked:
    """Mark, for every token t, the tokens s < t that follow an equal one: x_{s − 1} = x_t.

    A token that equals the one before it would mark itself; looking at oneself is not looking back, so it does not
    (TransformerLens's pattern of induction heads has it, unless ``exclude_current_token`` is set). ``segments`` is the
    document of every token, where several are packed; only those of one document are compared.
    """
    equal = tokens[:, :, None] == tokens[:, None, :]
    behind = torch.nn.functional.pad(equal[:, :, :-1], (1, 0)).tril(-1)
    if segments is None:
        return behind
    if segments.shape != tokens.shape:
        got = f"{tuple(segments.shape)} for {tuple(tokens.shape)}"
        raise StructuredInitError(f"segments have the shape of the tokens, the document of each, got {got}")
    together = segments[:, :, None] == segments[:, None, :]  # s and t, and s − 1 and t
    return behind & together & torch.nn.functional.pad(together[:, :, :-1], (1, 0))


def at_offset(maps: Maps, offset: int) -> Marked:
    """Mark the pairs (t, t − offset), alike for all samples; refuse an offset that has none."""
    tokens = checked_maps(maps).shape[-1]
    if maps.shape[-2] != tokens:
        raise StructuredInitError(f"maps of {maps.shape[-2]} queries and {tokens} keys: give square ones")
    if abs(offset) >= tokens:
        raise StructuredInitError(f"an offset of {offset} lies outside of {tokens} tokens")
    marked = torch.ones(tokens - abs(offset), dtype=torch.bool, device=maps.device).diag(-offset)
    return marked.expand(len(maps), -1, -1)


def attention_on(
    maps: Maps, marked: Marked, queries: Queries | None = None
) -> tuple[Float[Tensor, " heads"], Float[Tensor, ""]]:
    """Return Σ_t Σ_s A_ts over the marked s, and the number of tokens t that have any; both add up over batches."""
    if queries is not None:
        check_shape(maps, queries, "queries")
        marked = marked & queries[:, :, None].to(marked.device)
    marked = marked.to(maps.device) & seen_pairs(maps)[:, 0]
    total = torch.einsum("bhts,bts->h", shares(maps).double(), marked.double())
    return total, marked.any(dim=-1).sum().double()


def repeated_tokens(
    batch: int, length: int, vocabulary: Int[Tensor, " words"], *, generator: torch.Generator
) -> Tokens:
    """Draw random tokens and repeat them: sequences whose second half has nothing to go by but the first.

    No token comes twice within a half while the vocabulary, the token numbers to draw from, suffices. Where N is odd,
    the first token comes a third time.
    """
    if not isinstance(vocabulary, Tensor) or vocabulary.ndim != 1 or not len(vocabulary):
        raise StructuredInitError(f"repeated_tokens: vocabulary is a tensor of token numbers, got {shown(vocabulary)}")
    check_whole("repeated_tokens", batch=batch)
    check_whole("repeated_tokens", least=2, length=length)
    half = length // 2
    if len(vocabulary) >= half:
        drawn = torch.rand(batch, len(vocabulary), generator=generator).argsort(dim=1)[:, :half]
    else:
        drawn = torch.randint(len(vocabulary), (batch, half), generator=generator)
    return vocabulary[drawn.to(vocabulary.device)].repeat(1, 3)[:, :length]


def _mean(total: Tensor, count: Tensor) -> PerHead:
    return torch.where(count > 0, total / count.clamp(min=1), math.nan).float()


def check_shape(maps: Maps, given: Tensor, what: str) -> None:
    """Refuse what is not (B, N) of the maps."""
    if not isinstance(given, Tensor):
        raise StructuredInitError(f"{what} are a tensor (samples, tokens), got {shown(given)}")
    got, expected = tuple(given.shape), (maps.shape[0], maps.shape[-1])
    if got != expected:
        fewer = got[1:] == expected[1:] and got[0] > expected[0]
        why = ": capture_attention keeps the first max_samples of a batch, all with max_samples=None" if fewer else ""
        raise StructuredInitError(f"{what} of shape {got} do not fit maps of {expected} samples × tokens{why}")
