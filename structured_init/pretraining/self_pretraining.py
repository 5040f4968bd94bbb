"""SelfPretraining: the model is trained without labels on the task's own inputs before it is trained on the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.overlay import Weights
from structured_init.pretraining.training import (
    PARTS,
    ByTraining,
    Objective,
    Part,
    Task,
    decoder,
    draw_hidden,
    hidden_patch_loss,
    hidden_token_loss,
    image_patches,
    next_token_loss,
    objective_of,
)
from structured_init.pretraining.twin import Host, Twin, find_host

NAMES = ("input_ids", "pixel_values", "inputs", "x", "image")


@dataclass(eq=False, repr=False)
class SelfPretraining(ByTraining):
    """The model after a few hundred steps of foretelling parts of the task's own inputs, without labels.

    A causal language model foretells the next token of the task's text, an encoder the tokens that were hidden, and a
    vision transformer the pixels of hidden patches, through a temporary head. What is hidden is replaced by one
    temporary vector behind the token embedding or the patch convolution. A copy is trained, in random states of its
    own.

    It needs inputs of the task: :class:`~callbacks.InitCallback` takes them from the training data, never from
    validation or test, as ``show`` and ``audit`` do; else give ``initialize(model, …, batches=loader)``.

    Args:
        parts: which trained weights are taken: ``"attention"``, ``"mlp"``, ``"norms"`` of the layers, ``"positions"``,
            ``"embeddings"`` (or the patch convolution). ``None`` for all, as published; the model's final norm and
            head stay the host's. The layers are trained whole, positions and embeddings where they are taken.
        objective: foretell the ``"next"`` token, or ``"masked"`` ones; ``None``: the next one in causal models.
        mask_ratio: share of the tokens that are hidden.
        normalized_patches: bring the pixels of each patch to mean 0 and variance 1 before they are foretold.
        iterations: steps; 0 writes what is there.
        batch_size: samples in a step, where ``InitCallback`` makes the batches.
        learning_rate: of AdamW; it rises in the first tenth of the steps.
        weight_decay: of AdamW, on matrices.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, there are no inputs, or the model
            has no known attention, or not one list of layers behind one embedding or patch convolution; the loss is
            not finite.

    Source: Amos et al., "Never Train from Scratch", 2310.02980; Coser et al., 2605.21070. See ``docs/warmup.md`` for
    what is unconfirmed.
    """

    published_parts = PARTS

    parts: list[Part] | None = None
    objective: Objective | None = None
    mask_ratio: float = 0.5
    normalized_patches: bool = True
    iterations: int = 300
    batch_size: int = 32
    learning_rate: float = 5e-4
    weight_decay: float = 0.1

    @property
    def needs_batches(self) -> int:
        return self.batch_size

    def find(self, weights: Weights) -> Host:
        first, _ = next(endless(weights.batches))
        return find_host(weights, "SelfPretraining", first)

    def task(self, twin: Twin, weights: Weights, rng: Draws) -> Task:
        host, objective = twin.host, objective_of(twin.host, self.objective, "SelfPretraining")
        batches, masks = endless(weights.batches), rng.generator("", "SelfPretraining: masks")
        image = isinstance(twin.entrance, nn.Conv2d)
        hides = nn.Parameter(torch.zeros(host.width, device=twin.device))
        numbers = twin.entrance.weight[0].numel() if image else twin.entrance.num_embeddings
        head = decoder(host.width, numbers, twin.device)

        def loss() -> Tensor:
            batch, mask = next(batches)
            inputs, mask = twin.given(batch), None if mask is None else mask.to(twin.device)
            counted = None if mask is None else mask.bool()
            if objective == "next":
                return next_token_loss(head(twin.run(inputs, mask=mask)), inputs, counted)
            tokens = host.tokens if image else inputs.shape[1]
            hidden = draw_hidden(len(inputs), tokens, self.mask_ratio, generator=masks, counted=counted)
            hidden = hidden.to(twin.device)
            out = head(twin.run(inputs, lambda shown: torch.where(hidden[..., None], hides, shown), mask))
            if not image:
                return hidden_token_loss(out, inputs, hidden)
            patches = image_patches(inputs, twin.entrance, normalized=self.normalized_patches)
            return hidden_patch_loss(out, patches, hidden)

        self.account(twin, weights, objective, len(host.example), host.tokens)
        return loss, [*head.parameters(), *([hides] if objective == "masked" else [])]


def endless(batches: Iterable[Any] | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield inputs and, of padded texts, their mask, over and over."""
    if batches is None:
        raise StructuredInitError(
            "SelfPretraining needs the task's inputs: initialize(model, initializer, batches=loader), or InitCallback, "
            "which takes them from the training data"
        )
    if isinstance(batches, Iterator):
        raise StructuredInitError("SelfPretraining: batches can be iterated only once: give a list or a DataLoader")
    while True:
        any_left = False
        for batch in batches:
            any_left = True
            yield inputs_and_mask(batch)
        if not any_left:
            raise StructuredInitError("SelfPretraining: batches is empty")


def inputs_and_mask(batch: Any) -> tuple[Tensor, Tensor | None]:
    """Return the tensor of inputs in a batch, and which tokens of it are none of padding, where that is said."""
    mask, got = None, type(batch).__name__
    if isinstance(batch, Mapping):
        got = f"a mapping with {', '.join(map(str, batch))}"
        mask, batch = batch.get("attention_mask"), next((batch[name] for name in NAMES if name in batch), None)
    elif isinstance(batch, tuple | list) and batch:
        batch = batch[0]
    if not isinstance(batch, Tensor):
        raise StructuredInitError(
            "SelfPretraining: a batch is a tensor, a tuple that begins with one, or a mapping with "
            f"{' or '.join(NAMES[:2])}, got {got}"
        )
    return batch, mask
