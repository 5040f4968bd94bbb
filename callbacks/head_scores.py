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
    causal = {name: layer for name, layer in maps.items() if layer.shape[-1] == layer.shape[-2] and is_causal(layer)}
    scores: Scores = {
        name: {"previous_token_score": _rounded(previous_token_score(layer))} for name, layer in causal.items()
    }
    tokens = token_numbers(probe)
    one_each = {name: layer for name, layer in causal.items() if layer.shape[-1] == tokens.shape[1]}
    if not one_each:
        return scores
    if probe.queries is not None:
        found = _induction(one_each, tokens, probe.queries.cpu())
    else:
        found = _on_repeats(one_each, tokens, probe, capture, seed)
    return {name: {**of_layer, **found.get(name, {})} for name, of_layer in scores.items()}


def token_numbers(probe: ProbeBatch) -> Tensor:
    """Return the token numbers (B, N) of a probe on the CPU; an empty tensor where it has none."""
    given = [probe.named["input_ids"]] if "input_ids" in probe.named else list(probe.inputs[:1])
    found = [each for each in given if isinstance(each, Tensor) and each.ndim == 2 and not each.is_floating_point()]
    return found[0].cpu() if found else torch.empty(0, 0, dtype=torch.long)


def best_heads(scores: Scores) -> dict[str, float]:
    """Return the largest of each score over all layers and heads: a circuit takes one head of each."""
    names = {name for of_layer in scores.values() for name in of_layer}
    heads = {name: [each for of_layer in scores.values() for each in of_layer.get(name, [])] for name in sorted(names)}
    known = {name: [each for each in values if math.isfinite(each)] for name, values in heads.items()}
    return {name: max(values) for name, values in known.items() if values}


def log_scores(loggers: list[Logger], scores: Scores, part: str, step: int, epoch: int) -> None:
    """Give the best head's scores to the loggers, where curves of a part are: ``val/induction_score``."""
    best = {f"{PARTS[part]}/{name}": value for name, value in best_heads(scores).items()}
    for logger in loggers if best else ():
        # Lightning logs what is known after n steps as step n − 1.
        logger.log_metrics({**best, "epoch": epoch}, step=max(step - 1, 0))


def _on_repeats(maps: Maps, tokens: Tensor, probe: ProbeBatch, capture: Callable[..., Maps], seed: int) -> Scores:
    """Return the induction score of random tokens that come twice, as many samples as there are maps of the probe."""
    given = probe.named.get("input_ids", *probe.inputs[:1])
    if tokens.shape[1] < SHORTEST or len(probe.inputs) > 1 or not {"input_ids", *BESIDE} >= probe.named.keys():
        return {}
    samples = min(len(layer) for layer in maps.values())
    generator = torch.Generator().manual_seed(seed)
    twice = repeated_tokens(samples, tokens.shape[1], tokens.unique(), generator=generator)
    moved = twice.to(given)
    whole = {name: moved if name == "input_ids" else torch.ones_like(moved) for name in probe.named}
    seen = capture(**whole) if whole else capture(moved)
    return _induction({name: seen[name] for name in maps if name in seen}, twice)


def _induction(maps: Maps, tokens: Tensor, queries: Tensor | None = None) -> Scores:
    found: Scores = {}
    for name, layer in maps.items():  # a cap on memory may have kept the first samples alone
        asked = None if queries is None else queries[: len(layer)]
        found[name] = {"induction_score": _rounded(induction_score(layer, tokens[: len(layer)], asked))}
    return found


def _rounded(score: Tensor) -> list[float]:
    return [round(value, 6) for value in score.tolist()]
