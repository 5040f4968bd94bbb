"""How much of an answer is right, by the length of what was to be remembered.

Letters: B batch, L tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class RecallByLength(Metric):
    """Exact match and accuracy per token, for each of some known lengths.

    Args:
        lengths: the lengths to tell apart; examples of others count in the means over everything alone.
        solved: share of exact matches from which a length counts as solved.

    Attributes:
        counts: (lengths + 1, 4): examples, exact matches, scored tokens, right ones among them; the last row is of all.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    counts: Tensor

    def __init__(self, lengths: list[int], solved: float = 0.95) -> None:
        super().__init__()
        self.lengths, self.solved = sorted(set(lengths)), solved
        self.add_state("counts", torch.zeros(len(self.lengths) + 1, 4, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor, scored: Tensor, lengths: Tensor) -> None:
        """Count a batch.

        Args:
            predictions: (B, L) the likeliest token at each position, given the right answer before it.
            targets: (B, L).
            scored: (B, L) bool, the positions that count.
            lengths: (B,).
        """
        wrong, asked = ((predictions != targets) & scored).sum(1), scored.sum(1)
        rows = torch.stack([torch.ones_like(asked), wrong == 0, asked, asked - wrong], dim=1).to(self.counts)
        known = torch.tensor(self.lengths, device=lengths.device, dtype=lengths.dtype)
        of = torch.cat([lengths[None] == known[:, None], torch.ones_like(lengths[None], dtype=torch.bool)])
        self.counts += of.to(self.counts) @ rows

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all examples, those per length, and the longest length that is solved.

        ``exact_match`` and ``token_accuracy`` over everything, ``exact_match_L`` and ``token_accuracy_L`` for each
        length L that was seen, and ``longest_solved``: the largest L up to which every one is solved, 0 where none is.
        """
        examples, exact, tokens, right = self.counts.unbind(1)
        found = {"exact_match": exact[-1] / examples[-1], "token_accuracy": right[-1] / tokens[-1]}
        longest = torch.zeros_like(examples[-1])
        going_on = True
        for number, length in enumerate(self.lengths):
            if not examples[number]:
                continue
            found[f"exact_match_{length}"] = exact[number] / examples[number]
            found[f"token_accuracy_{length}"] = right[number] / tokens[number]
            going_on = going_on and bool(found[f"exact_match_{length}"] >= self.solved)
            longest = torch.full_like(longest, length) if going_on else longest
        return {name: value.float() for name, value in {**found, "longest_solved": longest}.items()}
