"""ProceduralWarmup: the layers are trained on generated sequences before they see the task."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from structured_init.arguments import check_finite, check_flag, check_whole
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError, nearest
from structured_init.plan import Weights
from structured_init.pretraining.by_training import ByTraining, Objective, Task, decoder, objective_of
from structured_init.pretraining.host import Host, find_host
from structured_init.pretraining.losses import draw_hidden, hidden_token_loss, next_token_loss
from structured_init.pretraining.parts import Part
from structured_init.pretraining.sequences import automaton_rows, dyck_words
from structured_init.pretraining.twin import Twin

SEQUENCES = ("dyck", "automata")
RULE = 110


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
        parts: which trained weights are taken: ``"attention"``, ``"mlp"``, ``"norms"`` of the layers,
            ``"positions"``. ``None`` for attention and MLPs. The layers are trained whole, positions where they
            are taken.
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

    def __init__(
        self,
        sequences: Literal["dyck", "automata"] = "dyck",
        kinds: int = 64,
        open_probability: float = 0.49,
        rules: list[int] | None = None,
        width: int | None = None,
        parts: list[Part] | None = None,
        objective: Objective | None = None,
        mask_ratio: float = 0.15,
        frozen_embedding: bool | None = None,
        length: int = 64,
        iterations: int = 300,
        batch_size: int = 32,
        learning_rate: float = 5e-4,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(parts, objective, mask_ratio, iterations, batch_size, learning_rate, weight_decay)
        if sequences not in SEQUENCES:
            raise StructuredInitError(
                f"ProceduralWarmup: unknown sequences '{sequences}': {nearest(sequences, SEQUENCES)}"
            )
        if parts is not None and "embeddings" in parts:
            raise StructuredInitError("ProceduralWarmup: embeddings are temporary and cannot be taken as a part")
        check_whole("ProceduralWarmup", kinds=kinds)
        check_whole("ProceduralWarmup", least=2, length=length)
        check_whole("ProceduralWarmup", null=True, width=width)
        check_finite("ProceduralWarmup", open_probability=open_probability)
        if not 0 < open_probability < 1:
            raise StructuredInitError(f"ProceduralWarmup: open_probability must be in (0, 1), got {open_probability}")
        _check_rules(rules)
        check_flag("ProceduralWarmup", null=True, frozen_embedding=frozen_embedding)
        self.sequences: Literal["dyck", "automata"] = sequences
        self.kinds = kinds
        self.open_probability = open_probability
        self.rules = rules
        self.width = width
        self.frozen_embedding = frozen_embedding
        self.length = length

    def find(self, weights: Weights) -> Host:
        return find_host(weights, "ProceduralWarmup", self._example(weights), self.length)

    def task(self, twin: Twin, weights: Weights, rng: Draws) -> Task:
        host, objective = twin.host, objective_of(twin.host, self.objective, "ProceduralWarmup")
        image = host.columns is not None
        inputs = twin_inputs(twin, self.batch_size)
        numbers = 2 * self.kinds if self.sequences == "dyck" else 2
        embedding = nn.Embedding(numbers + 1, host.width).to(twin.device)  # the last row is the mask
        with torch.no_grad():
            embedding.weight.mul_(entrance_scale(twin.entrance))
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

    def _example(self, weights: Weights) -> Tensor | None:
        """Return the real inputs that somebody gave, one of them, where it is a single tensor."""
        batch = weights.batch
        return batch[:1] if isinstance(batch, Tensor) else None

    def _generated(self, host: Host, rng: Draws) -> Callable[[], Tensor]:
        """Return what draws a batch of sequences."""
        generator = rng.generator("", "ProceduralWarmup: sequences")
        if self.sequences == "dyck":
            given = {"kinds": self.kinds, "open_probability": self.open_probability}
            return lambda: dyck_words(self.batch_size, host.tokens, **given, generator=generator)
        width = self.width or host.columns or math.isqrt(host.tokens)
        rules = [RULE] if self.rules is None else self.rules
        return lambda: automaton_rows(self.batch_size, host.tokens, rules=rules, width=width, generator=generator)


def _check_rules(rules: object) -> None:
    if rules is None:
        return
    if not isinstance(rules, list | tuple) or not rules:
        raise StructuredInitError(f"ProceduralWarmup: rules must be a list such as [110] or null, got {rules!r}")
    for rule in rules:
        check_whole("ProceduralWarmup", least=0, rules=rule)
        if rule > 255:
            raise StructuredInitError(f"ProceduralWarmup: rules must be from 0 to 255, got {rule}")


def twin_inputs(twin: Twin, batch_size: int) -> Tensor:
    """Return inputs of the right shape whose tokens are replaced: images of zeros, or one token again and again.

    A token that the example has is taken, so that it is not the one that stands for padding.
    """
    example = twin.given(twin.host.example)
    filled = torch.zeros_like(example) if example.is_floating_point() else example[:1, :1]
    return filled[:1].expand(batch_size, *example.shape[1:]).contiguous()


def entrance_scale(entrance: nn.Module) -> float:
    """Return the root mean square of what an entrance gives: of a table its entries', of patches for unit pixels."""
    weight = entrance.weight.detach().double()
    size = weight[0].numel() if isinstance(entrance, nn.Conv2d) else 1
    return weight.square().mean().mul(size).sqrt().item() or 1.0
