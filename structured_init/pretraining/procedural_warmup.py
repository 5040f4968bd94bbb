"""ProceduralWarmup: the layers are trained on generated sequences before they see the task.

The sequences are words of balanced brackets, or rows of elementary cellular automata.

Letters: B sequences, N tokens, K kinds of brackets, W cells of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.arguments import check_finite, check_whole
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError, nearest
from structured_init.overlay import Weights
from structured_init.pretraining.training import (
    ByTraining,
    Objective,
    Part,
    Task,
    decoder,
    draw_hidden,
    hidden_token_loss,
    next_token_loss,
    objective_of,
)
from structured_init.pretraining.twin import Host, Twin, find_host

SEQUENCES = ("dyck", "automata")


def dyck_words(
    count: int, length: int, *, kinds: int, open_probability: float, generator: torch.Generator
) -> Int64[Tensor, "count length"]:
    """Return k-Dyck words: every bracket is closed by one of its kind, in the reverse order of opening.

    Token t < K opens a bracket of kind t, each as likely as any other, and token K + t closes it. A bracket must be
    opened where none is open, and closed where the rest of the word has room for nothing else; everywhere else one is
    opened with a probability. A word of odd length is the beginning of one that is longer by a token.

    Source: the language of 2511.13945 and 2601.21725; the probability as in zlshinnick/procedural-pretraining,
    ``procedural_data/dyck.py``.
    """
    whole = length + length % 2
    words, stack = torch.empty(count, whole, dtype=torch.long), torch.zeros(count, whole + 1, dtype=torch.long)
    depth, every = torch.zeros(count, dtype=torch.long), torch.arange(count)
    opened = torch.randint(kinds, (count, whole), generator=generator)
    wanted = torch.rand(count, whole, generator=generator) < open_probability
    for place in range(whole):
        opens = (depth == 0) | (wanted[:, place] & (depth < whole - place))
        words[:, place] = torch.where(opens, opened[:, place], kinds + stack[every, depth])
        depth += torch.where(opens, 1, -1)
        stack[every[opens], depth[opens]] = opened[opens, place]
    return words[:, :length]


def automaton_rows(
    count: int, length: int, *, rules: Sequence[int], width: int, generator: torch.Generator
) -> Int64[Tensor, "count length"]:
    """Return the rows of elementary cellular automata, one behind the other, as tokens 0 and 1.

    The first row is drawn evenly, and which of the rules, from 0 to 255, a sequence follows. A cell's next state is the
    bit number 4·left + 2·own + right of the rule, as Wolfram numbers them; the last cell is the first one's neighbour.
    The last row is cut off where W does not divide N.

    Source: 2601.21725 trains on elementary cellular automata; rows as tokens one by one are our reading.
    """
    rule = torch.tensor(list(rules))[torch.randint(len(rules), (count,), generator=generator)][:, None]
    row = torch.randint(2, (count, width), generator=generator)
    rows = [row]
    for _ in range((length - 1) // width):
        row = (rule >> (4 * row.roll(1, 1) + 2 * row + row.roll(-1, 1))) & 1
        rows.append(row)
    return torch.cat(rows, dim=1)[:, :length]


@dataclass(eq=False, repr=False)
class ProceduralWarmup(ByTraining):
    """The layers after a few hundred steps on sequences that an algorithm generates; nothing of the task is seen.

    Generated tokens take the place of the host's: of a text's embeddings, or of an image's patches, one for each. The
    embedding and the head that the warm-up needs are temporary, so embeddings, positions and heads stay the host's.
    A copy is trained, in random states of its own.

    Args:
        sequences: ``"dyck"``, words of balanced brackets, or ``"automata"``, rows of elementary cellular automata.
        kinds: of brackets; 64 as published, which makes 128 tokens.
        open_probability: of opening a bracket where one can be opened or closed, in (0, 1); 0.49 as in the authors'
            code.
        rules: of the automata, each from 0 to 255; ``None`` for rule 110. See :func:`automaton_rows`.
        width: cells of a row of the automata; ``None`` for the columns of the host's grid of tokens, and √length for a
            text.
        parts: which trained weights are taken: ``"attention"``, ``"mlp"``, ``"norms"`` of the layers, ``"positions"``.
            ``None`` for attention and MLPs. The layers are trained whole, positions where they are taken.
        objective: foretell the ``"next"`` token, or ``"masked"`` ones; ``None``: the next one in causal models.
        mask_ratio: share of the tokens that are masked.
        frozen_embedding: keep the temporary embedding as it is drawn; ``None`` for images alone.
        length: of the sequences for a text, cut to what the host takes; an image says its own.
        iterations: steps; 0 writes what is there.
        batch_size: sequences in a step.
        learning_rate: of AdamW; it rises in the first tenth of the steps.
        weight_decay: of AdamW, on matrices.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, the model has no known attention,
            or not one list of layers behind one embedding or patch convolution; the loss is not finite.

    Source: 2511.13945 (vision), 2601.21725 and 2603.10055 (language), zlshinnick/procedural-pretraining. See
    ``docs/warmup.md`` for what is unconfirmed.
    """

    published_parts = ("attention", "mlp")

    sequences: Literal["dyck", "automata"] = "dyck"
    kinds: int = 64
    open_probability: float = 0.49
    rules: list[int] | None = None
    width: int | None = None
    parts: list[Part] | None = None
    objective: Objective | None = None
    mask_ratio: float = 0.15
    frozen_embedding: bool | None = None
    length: int = 64
    iterations: int = 300
    batch_size: int = 32
    learning_rate: float = 5e-4
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        sequences, opens, rules = self.sequences, self.open_probability, self.rules
        if sequences not in SEQUENCES:
            raise StructuredInitError(
                f"ProceduralWarmup: unknown sequences '{sequences}': {nearest(str(sequences), SEQUENCES)}"
            )
        if self.parts is not None and "embeddings" in self.parts:
            raise StructuredInitError("ProceduralWarmup: embeddings are temporary and cannot be taken as a part")
        check_whole("ProceduralWarmup", kinds=self.kinds)
        check_whole("ProceduralWarmup", least=2, length=self.length)
        check_whole("ProceduralWarmup", null=True, width=self.width)
        check_finite("ProceduralWarmup", open_probability=opens)
        if not 0 < opens < 1:
            raise StructuredInitError(f"ProceduralWarmup: open_probability must be in (0, 1), got {opens}")
        if rules is not None and (not isinstance(rules, list | tuple) or not rules):
            raise StructuredInitError(f"ProceduralWarmup: rules must be a list such as [110] or null, got {rules!r}")
        for rule in rules or ():
            check_whole("ProceduralWarmup", least=0, rules=rule)
            if rule > 255:
                raise StructuredInitError(f"ProceduralWarmup: rules must be from 0 to 255, got {rule}")

    def find(self, weights: Weights) -> Host:
        example = weights.batch[:1] if isinstance(weights.batch, Tensor) else None
        return find_host(weights, "ProceduralWarmup", example, self.length)

    def task(self, twin: Twin, weights: Weights, rng: Draws) -> Task:
        host, objective = twin.host, objective_of(twin.host, self.objective, "ProceduralWarmup")
        image = host.columns is not None
        example = twin.given(host.example)
        # What is replaced: images of zeros, or a token that the example has, so that it is not the one for padding.
        filled = torch.zeros_like(example[:1]) if example.is_floating_point() else example[:1, :1]
        inputs = filled.expand(self.batch_size, *example.shape[1:]).contiguous()
        numbers = 2 * self.kinds if self.sequences == "dyck" else 2
        embedding = nn.Embedding(numbers + 1, host.width).to(twin.device)  # the last row is the mask
        with torch.no_grad():
            weight = twin.entrance.weight.detach().double()
            size = weight[0].numel() if image else 1  # patches of unit pixels, or the table's entries, in mean square
            embedding.weight.mul_(weight.square().mean().mul(size).sqrt().item() or 1.0)
        head = decoder(host.width, numbers, twin.device)
        draw, masks = self._generated(host, rng), rng.generator("", "ProceduralWarmup: masks")

        def loss() -> Tensor:
            tokens = draw().to(twin.device)
            if objective == "next":
                return next_token_loss(head(twin.run(inputs, lambda _: embedding(tokens))), tokens)
            hidden = draw_hidden(*tokens.shape, self.mask_ratio, generator=masks).to(twin.device)
            shown = tokens.masked_fill(hidden, numbers)
            return hidden_token_loss(head(twin.run(inputs, lambda _: embedding(shown))), tokens, hidden)

        frozen = image if self.frozen_embedding is None else self.frozen_embedding
        self.account(twin, weights, objective, self.batch_size, host.tokens)
        return loss, [*head.parameters(), *(() if frozen else embedding.parameters())]

    def _generated(self, host: Host, rng: Draws) -> Callable[[], Tensor]:
        """Return what draws a batch of sequences."""
        generator = rng.generator("", "ProceduralWarmup: sequences")
        if self.sequences == "dyck":
            given = {"kinds": self.kinds, "open_probability": self.open_probability}
            return lambda: dyck_words(self.batch_size, host.tokens, **given, generator=generator)
        width = self.width or host.columns or math.isqrt(host.tokens)
        rules = [110] if self.rules is None else self.rules
        return lambda: automaton_rows(self.batch_size, host.tokens, rules=rules, width=width, generator=generator)
