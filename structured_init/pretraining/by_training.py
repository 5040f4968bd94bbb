"""What initializers that train have in common: their budget, the copy that is trained, and what is written of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from structured_init.arguments import check_not_negative, check_positive, check_whole
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError, nearest
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.pretraining.host import Host
from structured_init.pretraining.parts import Part, check_parts, parts_of, write_parts
from structured_init.pretraining.training import train, training_state
from structured_init.pretraining.twin import Twin

Objective = Literal["next", "masked"]
Task = tuple[Callable[[], Tensor], list[Tensor]]  # draws a batch and returns its loss; what is trained beside the host


class ByTraining(Initializer):
    """A short training of a copy; the parts asked for take its weights, the rest of the model stays as it is.

    A subclass checks its own arguments, says which parts are written by default, finds the host and gives the task.
    """

    parts: list[Part] | None
    published_parts: tuple[Part, ...]

    def __init__(
        self,
        parts: list[Part] | None,
        objective: Objective | None,
        mask_ratio: float,
        iterations: int,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        who = type(self).__name__
        if parts is not None:
            check_parts(who, parts)
        if objective not in ("next", "masked", None):
            choice = nearest(str(objective), ("next", "masked"))
            raise StructuredInitError(f"{who}: unknown objective '{objective}': {choice}")
        check_positive(who, mask_ratio=mask_ratio, learning_rate=learning_rate)
        check_not_negative(who, weight_decay=weight_decay)
        check_whole(who, least=0, iterations=iterations)
        check_whole(who, batch_size=batch_size)
        if mask_ratio >= 1:
            raise StructuredInitError(f"{who}: mask_ratio must be below 1, got {mask_ratio}")
        self.parts = parts
        self.objective = objective
        self.mask_ratio = mask_ratio
        self.iterations = iterations
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay

    @abstractmethod
    def find(self, weights: Weights) -> Host:
        """Return what is to be trained."""

    @abstractmethod
    def task(self, twin: Twin, weights: Weights, rng: Draws) -> Task:
        """Return what the copy is trained on; temporary layers may be drawn from the global random state."""

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        who = type(self).__name__
        parts = self.published_parts if self.parts is None else tuple(self.parts)
        seed = rng.generator("", f"{who}: training").initial_seed()
        with training_state(weights.model, seed):
            host = self.find(weights)
            twin = Twin(host, weights)
            chosen = parts_of(host, weights)
            if not any(part in parts for part, _ in chosen):
                raise StructuredInitError(f"{who}: the model has none of the parts {', '.join(parts)}")
            loss, further = self.task(twin, weights, rng)
            layers = [twin.of(each) for part, each in chosen if part in parts or part in ("attention", "mlp", "norms")]
            trained = [each.requires_grad_() for each in [*layers, *further]]
            if self.iterations:
                first, last = train(
                    loss,
                    trained,
                    iterations=self.iterations,
                    learning_rate=self.learning_rate,
                    weight_decay=self.weight_decay,
                    who=who,
                    progress=weights.progress,
                )
                weights.measure(who, {"loss": (first, last)})
        write_parts(twin, chosen, parts, weights, who)

    def account(self, twin: Twin, weights: Weights, objective: Objective, batch_size: int, tokens: int) -> None:
        """Say in the report what the training costs."""
        total = self.iterations * batch_size * tokens
        weights.note(
            type(self).__name__,
            f"trained the layers for {self.iterations:,} steps of {batch_size} × {tokens} tokens ({total:,} tokens), "
            f"to foretell {'the next token' if objective == 'next' else 'what was hidden'}",
        )


def objective_of(host: Host, asked: Objective | None, who: str) -> Objective:
    """Return what is foretold: what is asked for, else the next token where tokens see those before them only.

    Raises:
        StructuredInitError: the next token is to be foretold where tokens see it.
    """
    if asked == "next" and not host.causal:
        raise StructuredInitError(f"{who}: the tokens of this model attend to later ones: objective must be masked")
    return asked or ("next" if host.causal else "masked")


def decoder(width: int, outputs: int, device: object) -> nn.Module:
    """Return a temporary head: a norm and a linear map."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs)).to(device)
