"""Mimetic initialization of state-space models: a scan that starts as linear attention without decay.

Letters: W width, N state_dim, H heads, G groups, K taps. Row vectors: b = u W_B, c = u W_C, so that the match of tokens
i and j is u_i W_C W_Bᵀ u_jᵀ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.hosts.registry import Where
from structured_init.hosts.state_space import Selection, StateSpaceSite, required_state_space_sites
from structured_init.initializer import Initializer
from structured_init.ssm.scan import head_scan, selective_scan
from structured_init.util.arguments import check_choice, check_positive, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

DecayReading = Literal["fill", "scale"]
ScanScale = Literal["bounded", "paper"]
WHO = "MimeticStateSpace"
STEP = 1.0  # Δ
TOKENS, LAST = 256, 16  # how many random tokens are read, and over how many of the last the output is measured
ATTEMPTS = 12  # to make W_B and W_C as small as they have to be
INPUTS = 8.0  # how many times its input the output may be
SIZES = ("scan input (rms)", "scan output at token 64 (rms)", "scan output at token 256 (rms)")
HALF = 100.0  # root mean square at token 256 at which nothing overflows in float16, see bound


def slow_decay(A_log: Float[Tensor, "heads decays"], c: float, reading: DecayReading) -> Float[Tensor, "heads decays"]:
    """Return the A_log of 2410.11135's A = −exp(−c · A_log), as the host's own A = −exp(A_log) needs it.

    ``"scale"`` multiplies the host's initialization by −c: A_n = −n^(−c) in Mamba-1, whose first state still decays by
    e^(−Δ) a token. ``"fill"`` sets −c everywhere, A = −e^(−c).
    """
    return torch.full_like(A_log, -c) if reading == "fill" else -c * A_log


def step_bias(step: float) -> float:
    """Return b with softplus(b) = Δ: log(e^Δ − 1); 0.5413 for Δ = 1, of which the paper prints 0.54."""
    return step + math.log(-math.expm1(-step))


@dataclass(eq=False, repr=False)
class MimeticStateSpace(Initializer):
    """A ≈ 1, Δ ≈ 1, C correlated with B, and an identity convolution, in Mamba and Mamba-2.

    Each component can be switched off; then the host's own initialization stays. Output and input projections, gates,
    D, norms and embeddings are never touched. A scan without decay sums all tokens that it has seen; where the host
    does not normalize that (Mamba-1), the residual stream grows with the length. The scan's output is measured on
    random tokens, and where it would grow out of bounds, W_B and W_C are made smaller (``scan_scale``), which is ours.

    Not known from the paper, and therefore arguments: whether A_log is set to a value or multiplied
    (``decay_reading``), and which layers (``layers``; a review says that the paper's main experiment starts a single
    one, which it calls "Layer 4").

    Args:
        decay: write A.
        decay_reading: ``"fill"``, A_log = −c, as a public port has it, or ``"scale"``, A_log = −c times the host's, as
            the paper's formula reads with the host's own initialization.
        decay_c: c; the paper uses 8, and 2 and 4 in comparisons. At Δ = 1, filled, 8 is a half-life of 2,066 tokens.
        step: write Δ = 1, with W_Δ = 0: it is the same for every token until training moves it.
        correlate: write W_C = ½ (W_C' + W_B), both as the host drew them.
        convolution: write the short convolution: 1 at the token itself, 0 before it, no bias. The paper calls it
            optional.
        scan_scale: ``"bounded"`` makes W_B and W_C smaller by one factor where the scan's output at the 256th of random
            tokens would be larger than eight times its input and than it was before (Mamba-1), or, where the host
            normalizes it (Mamba-2), than half precision can hold. ``"paper"`` leaves both as the
            components have them, and warns.
        layers: which of the model's state-space layers, by number from 0, negative from the end; all where null.
        where: which of them, by shell pattern; with ``layers``, those that both select.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, no state-space layer of a known
            class, or a layer number that the model has not.

    Example:
        >>> from transformers import Mamba2Config, Mamba2ForCausalLM
        >>> from structured_init import MimeticStateSpace, initialize
        >>> sizes = {"hidden_size": 64, "num_heads": 4, "head_dim": 32, "n_groups": 1, "state_size": 16}
        >>> model = Mamba2ForCausalLM(Mamba2Config(vocab_size=30, num_hidden_layers=2, **sizes))
        >>> report = initialize(model, MimeticStateSpace(), seed=0)
        >>> round(report.measures["backbone.layers.0.mixer"]["half-life (tokens), median"][1])
        2066

    Source: Trockman, Harutyunyan, Kolter, Kumar & Bhojanapalli, 2410.11135, see ``docs/mimetic_state_space.md``.
    """

    decay: bool = True
    decay_reading: DecayReading = "fill"
    decay_c: float = 8.0
    step: bool = True
    correlate: bool = True
    convolution: bool = True
    scan_scale: ScanScale = "bounded"
    layers: list[int] | None = None
    where: Where = None

    def __post_init__(self) -> None:
        check_choice(WHO, decay_reading=(self.decay_reading, DecayReading), scan_scale=(self.scan_scale, ScanScale))
        check_positive(WHO, decay_c=self.decay_c)
        if not isinstance(self.layers, list | tuple | None):
            raise StructuredInitError(f"{WHO}: layers must be a list such as [3] or null, got {self.layers!r}")
        for layer in self.layers or ():
            check_whole(WHO, least=None, layers=layer)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        written: set[int] = set()  # what layers share is written once
        for site in weights.each(required_state_space_sites(weights, self.where, self.layers, WHO)):
            scale = scan_scale(site)
            before = measures(site, scale)
            new = {id(site.layout.A_log), id(site.layout.C.weight)} - written
            written |= new
            if self.decay and id(site.layout.A_log) in new:  # 2410.11135, component 1: A ≈ 1
                site.by(f"{WHO}: decay").A_log = slow_decay(site.A_log, self.decay_c, self.decay_reading)
            if self.step:
                self._step(site.by(f"{WHO}: step"))
            if self.correlate and id(site.layout.C.weight) in new:
                self._correlate(site.by(f"{WHO}: correlate"))
            if self.convolution and site.conv_weight is not None:
                self._convolution(site.by(f"{WHO}: convolution"))
            after = measures(site, self._bound(site.by(f"{WHO}: scan_scale"), scale))
            weights.measure(site.name, {name: (before[name], after[name]) for name in before})

    def _step(self, site: StateSpaceSite) -> None:
        """2410.11135, component 2: Δ ≈ 1."""
        low, high = site.layout.dt_limit
        if not low <= STEP <= high:
            site.note(f"the host cuts Δ to [{low:g}, {high:g}]: {STEP:g} is never reached")
        site.dt_bias = torch.full_like(site.dt_bias, step_bias(STEP))
        site.dt_weight = torch.zeros_like(site.dt_weight)
        if site.layout.delta:
            site.note("Δ sets the decay of this delta rule alone: how much a token writes has a rate of its own, kept")

    def _correlate(self, site: StateSpaceSite) -> None:
        """2410.11135, component 3: C correlated with B."""
        if site.layout.match_norm:
            site.note("the host normalizes b and c: the scale of W_B and W_C has no effect")
        site.C = (site.C + site.B) / 2

    def _convolution(self, site: StateSpaceSite) -> None:
        """2410.11135, component 4: the identity."""
        taps = torch.zeros_like(site.conv_weight)
        taps[:, -1] = 1
        site.conv_weight = taps
        if site.conv_bias is not None:
            site.conv_bias = torch.zeros_like(site.conv_bias)

    def _bound(self, site: StateSpaceSite, before: ScanSize | None) -> ScanSize | None:
        """Keep the scan's output from growing out of bounds, or say that it does; return its scale."""
        present = scan_scale(site)
        if present is None or present.late <= (limit := bound(before, site)):
            return present
        if self.scan_scale == "paper" or site.layout.match_norm:
            site.warn(
                f"the scan's output grows to {present.late:.3g} (RMS) in 256 random tokens, from {before.late:.3g}"
                " before, and keeps growing with the length: half precision may overflow; scan_scale='bounded' "
                "prevents it, but where the host normalizes b and c: there no scale of W_B and W_C does"
            )
            return present
        reached, factor = keep_within(site, present, limit)
        site.note(
            f"W_B and W_C were multiplied by {factor:.3g}: the scan's output would have grown to {present.late:.3g}"
            " (rms) in 256 random tokens; scan_scale='paper' leaves them"
        )
        return reached


def match_distance(
    B: Float[Tensor, "groups width state_dim"], C: Float[Tensor, "groups width state_dim"]
) -> Float[Tensor, " groups"]:
    """Return ‖W_C W_Bᵀ − I‖ (Frobenius) per group, without forming the W × W product.

    ‖M − I‖² = tr(W_Cᵀ W_C W_Bᵀ W_B) − 2 tr(W_Cᵀ W_B) + W, and since M has rank N or less, it is at least W − N.
    """
    B, C = B.double(), C.double()
    squared = ((C.mT @ C) * (B.mT @ B)).sum((-2, -1)) - 2 * (C * B).sum((-2, -1)) + B.shape[-2]
    return squared.clamp(min=0).sqrt()


def measures(site: StateSpaceSite, scale: ScanSize | None) -> dict[str, float]:
    """Return what the report says of a layer, before and after an initialization.

    Half-life in tokens (5th percentile, median and 95th over heads and states), Δ (likewise, over heads) where the
    input moves it nowhere, the largest modulus in W_Δ, 0 where no input can move it, ‖W_C W_Bᵀ − I‖ (mean over groups),
    how far the short convolution is from the identity, and how large the scan's input and output are on random tokens.
    """
    measured = {}
    if (taps := site.conv_weight) is not None:
        taps = taps.double()
        taps[:, -1] -= 1
        measured["convolution − identity (rms)"] = taps.square().mean().sqrt().item()
    return {
        **_spread("half-life (tokens)", site.half_life),
        **_spread("Δ", site.step),
        "largest W_Δ": site.dt_weight.abs().max().item(),
        "‖CᵀB − I‖": match_distance(site.B, site.C).mean().item(),
        **measured,
        **({} if scale is None else dict(zip(SIZES, scale, strict=True))),
    }


def _spread(name: str, values: Tensor) -> dict[str, float]:
    parts = torch.quantile(values.double().flatten(), values.new_tensor([0.05, 0.5, 0.95]).double())
    return dict(zip((f"{name}, 5 %", f"{name}, median", f"{name}, 95 %"), parts.tolist(), strict=True))


class ScanSize(NamedTuple):
    """Root mean squares over the channels of a scan."""

    input: float  # of x, over all tokens
    early: float  # of the scan's output y, without the skip D, at tokens 49 to 64
    late: float  # the same at tokens 241 to 256


def scan_scale(site: StateSpaceSite) -> ScanSize | None:
    """Measure a layer's scan with its present weights, on 256 tokens from N(0, 1), as a norm gives them.

    The tokens are the same for every layer of a width. ``None`` where the layout does not say how to compute it.
    """
    if site.layout.embed_dim is None:
        return None
    source = torch.Generator().manual_seed(0)
    selection = site.selection(torch.randn(1, TOKENS, site.layout.embed_dim, generator=source))
    if selection is None:
        return None
    output = _scan(selection, -site.A_log.exp())[0]
    return ScanSize(_rms(selection.values), _rms(output[64 - LAST : 64]), _rms(output[-LAST:]))


def bound(before: ScanSize, site: StateSpaceSite) -> float:
    """Return how large the output may be at token 256: eight times the input, or what it was before, the larger.

    At mamba-ssm's own scales the scan without decay reaches three to five times its input, and nothing is changed.
    Where the host normalizes the output, what float16 can hold: a scan without decay grows at most twelve times more
    until its half-life of 2,066 tokens ends that, and hardly an entry is larger than twenty times the root mean square;
    100 · 12 · 20 is less than the 65,504 at which float16 ends.
    """
    return max(HALF if site.layout.normalized else INPUTS * before.input, before.late)


def keep_within(site: StateSpaceSite, measured: ScanSize, limit: float) -> tuple[ScanSize, float]:
    """Make W_B and W_C smaller by one factor until the scan's output at token 256 is at a limit, to 5 % below.

    The output is taken to be a power of the factor. That of Mamba-1 is linear in either matrix, so the first attempt
    succeeds; that of Mamba-2, where SiLU stands in between, shows its exponent after one. Return scale and factor.
    """
    factor, exponent = 1.0, 2.0
    for _ in range(ATTEMPTS):
        part = (limit / measured.late) ** (1 / exponent)
        site.B, site.C = part * site.B, part * site.C
        factor *= part
        before, measured = measured, scan_scale(site)
        if 0.95 * limit <= measured.late <= 1.001 * limit:
            break
        exponent = max(math.log(measured.late / before.late) / math.log(part), 1.0)
    return measured, factor


def _scan(selection: Selection, A: Tensor) -> Tensor:
    values, step, B, C = selection
    if A.shape[1] == 1:
        return head_scan(values, step, A[:, 0], B, C)
    return selective_scan(values[..., 0], step, A, B[:, :, 0], C[:, :, 0])


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()
