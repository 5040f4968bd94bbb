"""Previous-token and induction scores of a causal model, from the maps of a probe and one more forward pass.

Letters: B samples, H heads, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor

from callbacks.samples import ProbeBatch
from structured_init.analysis import induction_score, previous_token_score, repeated_tokens
from structured_init.analysis.statistics import is_causal
from structured_init.inputs import numbered

SHORTEST = 4  # tokens in which something can come twice
BESIDE = ("segment_ids", "attention_mask")  # what may stand beside token numbers: one document, all of it seen
PARTS = {"validation": "val", "training": "train"}

Maps = Mapping[str, Tensor]
Scores = dict[str, dict[str, list[float]]]  # layer → score → heads


def head_scores(maps: Maps, probe: ProbeBatch, capture: Callable[..., Maps], seed: int) -> Scores:
    """Return both scores of every layer and head of a causal model; nothing of any other model.

    The previous-token score is that of the probe. The induction score is taken on random tokens that come twice, drawn
    from those of the probe and as long; where the module names the tokens that are to be continued
    (``probe_queries``), on those of the probe itself. Without token numbers there is none.
    """
    scores: Scores = {}
    for name, layer in maps.items():
        if layer.shape[-1] == layer.shape[-2] and is_causal(layer):
            scores[name] = {"previous_token_score": _rounded(previous_token_score(layer))}
    tokens, queries = token_numbers(probe), probe.queries
    asked = {name: maps[name] for name in scores if maps[name].shape[-1] == tokens.shape[1]}
    if asked and queries is None:
        samples = min(len(layer) for layer in asked.values())
        tokens, seen = _repeats(tokens, samples, probe, capture, seed)
        queries = torch.ones_like(tokens, dtype=torch.bool)
        asked = {name: seen[name] for name in asked if name in seen}
    for name, layer in asked.items():
        samples = len(layer)  # a cap on memory may have kept the first samples alone
        score = induction_score(layer, tokens[:samples], queries[:samples].cpu())
        scores[name]["induction_score"] = _rounded(score)
    return scores


def token_numbers(probe: ProbeBatch) -> Tensor:
    """Return the token numbers (B, N) of a probe on the CPU; an empty tensor where it has none."""
    given = probe.named.get("input_ids", *probe.inputs[:1])
    return given.cpu() if numbered(given) else torch.empty(0, 0, dtype=torch.long)


def _repeats(
    tokens: Tensor, samples: int, probe: ProbeBatch, capture: Callable[..., Maps], seed: int
) -> tuple[Tensor, Maps]:
    """Return random tokens that come twice, and the maps of them; no maps where the model takes more than tokens."""
    if tokens.shape[1] < SHORTEST or len(probe.inputs) > 1 or not {"input_ids", *BESIDE} >= probe.named.keys():
        return tokens, {}
    generator = torch.Generator().manual_seed(seed)
    twice = repeated_tokens(samples, tokens.shape[1], tokens.unique(), generator=generator)
    moved = twice.to(probe.named.get("input_ids", *probe.inputs))
    named = dict.fromkeys(probe.named, torch.ones_like(moved))
    if "input_ids" in named:
        named["input_ids"] = moved
    return twice, capture(*[moved] * len(probe.inputs), **named)


def log_scores(loggers: list[Logger], scores: Scores, part: str, step: int, epoch: int) -> None:
    """Give the best head's scores to the loggers, where curves of a part are: ``val/induction_score``.

    A circuit takes one head of each.
    """
    heads: dict[str, list[float]] = {}
    for of_layer in scores.values():
        for name, values in of_layer.items():
            heads.setdefault(f"{PARTS[part]}/{name}", []).extend(filter(math.isfinite, values))
    best = {name: max(values) for name, values in sorted(heads.items()) if values}
    for logger in loggers if best else ():
        # Lightning logs what is known after n steps as step n − 1.
        logger.log_metrics({**best, "epoch": epoch}, step=max(step - 1, 0))


def _rounded(score: Tensor) -> list[float]:
    return [round(value, 6) for value in score.tolist()]
