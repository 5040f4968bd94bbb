"""What initializers that train have in common: their budget and losses, what is trained, and what is written of it.

Letters: B samples, N tokens, V numbers of tokens, P pixels of a patch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from structured_init.arguments import check_not_negative, check_positive, check_share, check_whole
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError, nearest
from structured_init.hosts.attention import required_attention_sites
from structured_init.hosts.layout import PARTS as MATRICES
from structured_init.hosts.positions import position_sites
from structured_init.initializer import Initializer
from structured_init.overlay import Weights
from structured_init.pretraining.twin import Host, Twin
from structured_init.progress import Progress
from structured_init.running import eager, own_random_state
from structured_init.threads import all_threads

RISE = 0.1  # share of the steps in which the learning rate rises
CLIP = 1.0  # largest norm of all gradients together
Part = Literal["attention", "mlp", "norms", "positions", "embeddings"]
PARTS: tuple[Part, ...] = ("attention", "mlp", "norms", "positions", "embeddings")
Objective = Literal["next", "masked"]
Task = tuple[Callable[[], Tensor], list[Tensor]]  # draws a batch and returns its loss; what is trained beside the host


class ByTraining(Initializer):
    """A short training of a copy; the parts asked for take its weights, the rest of the model stays as it is.

    A subclass is a dataclass of these arguments and its own. It says which parts are written by default, finds the
    host and gives the task.
    """

    published_parts: tuple[Part, ...]
    parts: list[Part] | None
    objective: Objective | None
    mask_ratio: float
    iterations: int
    batch_size: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        who, parts, objective = type(self).__name__, self.parts, self.objective
        if parts is not None:
            if not isinstance(parts, list | tuple) or not parts:
                raise StructuredInitError(f"{who}: parts is a list such as [attention, mlp], got {parts!r}")
            for part in parts:
                if part not in PARTS:
                    raise StructuredInitError(f"{who}: unknown part '{part}': {nearest(str(part), PARTS)}")
        if objective not in ("next", "masked", None):
            choice = nearest(str(objective), ("next", "masked"))
            raise StructuredInitError(f"{who}: unknown objective '{objective}': {choice}")
        check_positive(who, mask_ratio=self.mask_ratio, learning_rate=self.learning_rate)
        check_not_negative(who, weight_decay=self.weight_decay)
        check_whole(who, least=0, iterations=self.iterations)
        check_whole(who, batch_size=self.batch_size)
        check_share(who, mask_ratio=self.mask_ratio)

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
        own = own_random_state(weights.model, seed)  # of which temporary layers and dropout draw
        with own, all_threads(), eager(), torch.inference_mode(False), torch.enable_grad():
            host = self.find(weights)
            twin = Twin(host, weights)
            chosen = parts_of(host, weights)
            if not any(part in parts for part, _ in chosen):
                raise StructuredInitError(f"{who}: the model has, or trains, none of the parts {', '.join(parts)}")
            loss, further = self.task(twin, weights, rng)
            layers = [twin.of(each) for part, each in chosen if part in parts or part in ("attention", "mlp", "norms")]
            trained = [each.requires_grad_() for each in [*layers, *further]]
            if self.iterations:
                rates = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
                run = {"iterations": self.iterations, "who": who, "progress": weights.progress}
                weights.measure(who, {"loss": train(loss, trained, **rates, **run)})
        for part, parameter in weights.each([pair for pair in chosen if pair[0] in parts]):
            weights.write(parameter, twin.of(parameter).detach().cpu(), f"{who}: {part}")
        if "attention" in parts:
            required_attention_sites(weights, None, who)  # records which are taken
            for site, matrix in product(host.sites, MATRICES):
                if getattr(site.layout, matrix).weight.requires_grad:
                    weights.assign(site.name, matrix)

    def account(self, twin: Twin, weights: Weights, objective: Objective, batch_size: int, tokens: int) -> None:
        """Say in the report what the training costs."""
        total = self.iterations * batch_size * tokens
        weights.note(
            type(self).__name__,
            f"trained the layers for {self.iterations:,} steps of {batch_size} × {tokens} tokens ({total:,} tokens), "
            f"to foretell {'the next token' if objective == 'next' else 'what was hidden'}",
        )


def objective_of(host: Host, asked: Objective | None, who: str) -> Objective:
    """Return what is foretold: what is asked for, else the next token where tokens see those before them only."""
    if asked == "next" and host.causal is False:
        raise StructuredInitError(f"{who}: the tokens of this model attend to later ones: objective must be masked")
    return asked or ("next" if host.causal else "masked")


def decoder(width: int, outputs: int, device: object) -> nn.Module:
    """Return a temporary head: a norm and a linear map."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs)).to(device)


def train(
    loss_of_a_batch: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    *,
    iterations: int,
    learning_rate: float,
    weight_decay: float,
    who: str,
    progress: Progress,
) -> tuple[float, float]:
    """Train with AdamW; return the first loss and the mean of the last tenth of the losses.

    The rate rises in the first tenth of the steps. Weights of two axes or more decay. A loss not finite is an error.
    """
    decays = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": decays, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate)
    rise, losses = max(1, round(RISE * iterations)), []
    for step in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / rise)
        optimizer.zero_grad()
        loss = loss_of_a_batch()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise StructuredInitError(
                f"{who}: the loss is {losses[-1]} in step {step + 1} of {iterations}: give a smaller learning_rate"
            )
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        progress.step(step + 1, iterations, losses[-1])
    last = losses[-max(1, iterations // 10) :]
    return losses[0], math.fsum(last) / len(last)


def parts_of(host: Host, weights: Weights) -> list[tuple[Part, nn.Parameter]]:
    """Return every parameter of the layers, the positions and the entrance, each once, with the part it belongs to.

    Attention is what a layer of attention holds, and its projections where they lie outside of it; norms are those
    anywhere in the layers, and what is left that is no linear map, such as LayerScale; all other linear maps are MLPs.
    What the host does not train is left out.
    """
    tensors: dict[int, tuple[Part, nn.Parameter]] = {}
    attending = {id(part) for site in host.sites for part in site.module.modules()}
    projections = {id(weight) for site in host.sites for weight in site.layout.parameters()}
    for module in host.layers.modules():
        own = [each for each in module._parameters.values() if each is not None]
        attends = id(module) in attending or any(id(each) in projections for each in own)
        norm = "norm" in type(module).__name__.lower()
        linear = any(each.dim() > 1 for each in own)
        part: Part = "norms" if norm else "attention" if attends else "mlp" if linear else "norms"
        for parameter in own:
            tensors.setdefault(id(parameter), (part, parameter))
    for site in position_sites(weights):
        if isinstance(site.tensor, nn.Parameter):
            tensors.setdefault(id(site.tensor), ("positions", site.tensor))
    for parameter in host.entrance.parameters():
        tensors.setdefault(id(parameter), ("embeddings", parameter))
    inside = {id(parameter) for parameter in host.module.parameters()}
    return [pair for key, pair in tensors.items() if key in inside and pair[1].requires_grad]


def next_token_loss(
    logits: Float[Tensor, "batch tokens numbers"],
    tokens: Int64[Tensor, "batch tokens"],
    counted: Bool[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of each token but the first, given those before it.

    Logits at token n are for token n + 1; ``counted`` (B, N) says which tokens are to be foretold.
    """
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return losses.mean() if counted is None else losses[counted[:, 1:]].mean()


def hidden_token_loss(
    logits: Float[Tensor, "batch tokens numbers"],
    tokens: Int64[Tensor, "batch tokens"],
    hidden: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the tokens (B, N) that were hidden."""
    return F.cross_entropy(logits[hidden], tokens[hidden])


def hidden_patch_loss(
    pixels: Float[Tensor, "batch tokens pixels"],
    patches: Float[Tensor, "batch tokens pixels"],
    hidden: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, ""]:
    """Return the mean squared error of the pixels (B, N, P) of the patches that were hidden."""
    return F.mse_loss(pixels[hidden], patches[hidden])


def image_patches(
    images: Float[Tensor, "batch channels rows columns"], convolution: nn.Conv2d, *, normalized: bool
) -> Float[Tensor, "batch tokens pixels"]:
    """Return the pixels (B, N, P) that a convolution makes each token of."""
    sizes = {name: getattr(convolution, name) for name in ("kernel_size", "dilation", "padding", "stride")}
    patches = F.unfold(images, **sizes).mT
    return F.layer_norm(patches, patches.shape[-1:]) if normalized else patches


def draw_hidden(
    batch: int, tokens: int, share: float, *, generator: torch.Generator, counted: Tensor | None = None
) -> Bool[Tensor, "batch tokens"]:
    """Return which tokens (B, N) are hidden: each with probability ``share``, and in every batch at least one.

    Only tokens that are ``counted`` (B, N) may be hidden.
    """
    drawn = torch.rand(batch, tokens, generator=generator)
    if counted is not None:
        drawn = drawn.masked_fill(~counted.cpu(), 2.0)
    return drawn < max(share, drawn.min().nextafter(torch.tensor(2.0)).item())
