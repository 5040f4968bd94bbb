"""The initialization of mamba-ssm, the reference implementation of Mamba and Mamba-2, in any host.

Letters: D embed_dim, N state_dim, H heads, K taps, R rank of Δ in Mamba-1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structured_init.attention.baselines import uniform_fan_in
from structured_init.hosts.registry import Where
from structured_init.hosts.state_space import StateSpaceSite, required_state_space_sites, state_space_sites
from structured_init.initializer import Initializer
from structured_init.ssm.mimetic import measures, scan_scale
from structured_init.util.arguments import check_whole
from structured_init.util.draws import Draws
from structured_init.weights import Weights
from structured_init.writer import empty_value

WHO = "MambaReference"
RESIDUAL = "out_proj"  # the last projection of a layer, into the residual stream
HEAD = "lm_head"
STEPS = 0.001, 0.1  # least and largest Δ
RATES = 1.0, 16.0  # least and largest −A of Mamba-2
EMBEDDING_STD = 0.02


def log_uniform_step(count: int, low: float, high: float, *, generator: torch.Generator) -> Tensor:
    """Return b (count,) with softplus(b) = Δ, Δ log-uniform in [low, high]: Δ + log(1 − e^(−Δ)).

    Source: ``mamba_ssm/modules/mamba_simple.py`` and ``mamba2.py``, ``inv_dt``.
    """
    draw = torch.rand(count, dtype=torch.float64, generator=generator)
    step = (draw * (math.log(high) - math.log(low)) + math.log(low)).exp()
    return step + torch.log(-torch.expm1(-step))


@dataclass(eq=False, repr=False)
class MambaReference(Initializer):
    """What mamba-ssm itself starts a Mamba or Mamba-2 language model with: the baseline that hosts differ from.

    Written are the mixers' linear layers, U(±1/√fan_in), biases zero, output projections 1/√layers smaller; the short
    convolution, U(±1/√K), weights and biases; Δ's bias, softplus⁻¹ of a log-uniform Δ; A_log, log(1 … N) in every
    channel of Mamba-1 and log U(1, 16) in every head of Mamba-2; D = 1; embeddings, N(0, 0.02²), all of the model's;
    and the output head, unless it is tied to them, U(±1/√D). Normalizations stay as the host built them, which is ones.
    An output projection is the linear layer called ``out_proj``, and the output head the one called ``lm_head``.

    Args:
        num_layers: of the network; ``None`` counts its state-space layers, which in a hybrid are fewer.
        where: which state-space layers, by shell pattern.

    Raises:
        StructuredInitError: at :meth:`plan`, no state-space layer of a known class.

    Source: ``mamba_ssm/modules/mamba_simple.py``, ``modules/mamba2.py`` and ``_init_weights`` in
    ``models/mixer_seq_simple.py`` of state-spaces/mamba 2.3.2.
    """

    baseline = True
    num_layers: int | None = None
    where: Where = None

    def __post_init__(self) -> None:
        check_whole(WHO, null=True, num_layers=self.num_layers)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        layers = self.num_layers or len(state_space_sites(weights))
        for site in weights.each(required_state_space_sites(weights, self.where, None, WHO)):
            if site.layout.delta:
                weights.skip(site.name, "a delta rule is no layer of mamba-ssm")
                continue
            before = measures(site, scan_scale(site))
            self._linears(site, weights, rng, 1 / math.sqrt(layers))
            self._scan(site.by(WHO), rng)
            after = measures(site, scan_scale(site))
            weights.measure(site.name, {name: (before[name], after[name]) for name in before})
        self._embeddings(weights, rng)

    def _linears(self, site: StateSpaceSite, weights: Weights, rng: Draws, residual: float) -> None:
        linears = {name: each for name, each in site.module.named_modules() if isinstance(each, nn.Linear)}
        for name, module in linears.items():
            weight = _uniform(weights, module.weight, rng)
            if name == RESIDUAL:
                weight *= residual
            if module.bias is not None and module.bias is not site.layout.dt_bias:
                weights.edit(module.bias, WHO).zero_()
        if residual != 1 and RESIDUAL not in linears:
            site.note(f"no output projection was divided by √layers: no linear layer of it is called '{RESIDUAL}'")

    def _scan(self, site: StateSpaceSite, rng: Draws) -> None:
        if (taps := site.conv_weight) is not None:
            site.conv_weight = _filled(taps, taps.shape[-1], rng.generator(site.name, f"{WHO}: conv_weight"))
            if (bias := site.conv_bias) is not None:
                site.conv_bias = _filled(bias, taps.shape[-1], rng.generator(site.name, f"{WHO}: conv_bias"))
        generator = rng.generator(site.name, f"{WHO}: step")
        site.dt_bias = log_uniform_step(site.num_heads, *STEPS, generator=generator)
        A_log, generator = site.A_log, rng.generator(site.name, f"{WHO}: A")
        if site.layout.A_log.ndim > 1:
            bound = 1 / math.sqrt(site.dt_weight.shape[0])
            step = rng.generator(site.name, f"{WHO}: dt_weight")
            site.dt_weight = empty_value(site.dt_weight).uniform_(-bound, bound, generator=step)
            site.A_log = torch.arange(1, A_log.shape[1] + 1, dtype=A_log.dtype).log().expand_as(A_log)
        else:
            site.A_log = empty_value(A_log).uniform_(*RATES, generator=generator).log()
        if site.layout.D is not None:
            site.D = torch.ones_like(site.D)

    def _embeddings(self, weights: Weights, rng: Draws) -> None:
        tied: set[int] = set()  # should a head come before its embeddings, these write over it
        for name, module in weights.each(weights.modules.items()):
            if isinstance(module, nn.Embedding):
                generator = rng.generator(weights.names(module.weight)[0], WHO)
                drawn = empty_value(module.weight).normal_(0, EMBEDDING_STD, generator=generator)
                weights.write(module.weight, drawn, WHO, own=True)
                tied.add(id(module.weight))
            elif name.split(".")[-1] == HEAD and isinstance(module, nn.Linear) and id(module.weight) not in tied:
                _uniform(weights, module.weight, rng)
                if module.bias is not None:
                    weights.edit(module.bias, WHO).zero_()


def _uniform(weights: Weights, weight: Tensor, rng: Draws) -> Tensor:
    value = weights.edit(weight, WHO)
    return _filled(value, weight.shape[1], rng.generator(weights.names(weight)[0], WHO))


def _filled(tensor: Tensor, fan_in: int, generator: torch.Generator) -> Tensor:
    uniform_fan_in(drawn := empty_value(tensor), fan_in, generator)
    return tensor.copy_(drawn)
