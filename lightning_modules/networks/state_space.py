"""Mamba and Mamba-2 that train on a CPU: transformers' own layers with the scans of this project.

Letters: B batch, L tokens, D embed_dim, I inner width, H heads, P head_dim, G groups, N state_dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from structured_init.hosts.state_space import Selection
from structured_init.hosts.state_space_layouts import mamba, mamba2
from structured_init.ssm.scan import head_scan, selective_scan

HOST = "cpu"  # elsewhere transformers has kernels, or is told what to do


class ChunkedMambaMixer(MambaMixer):
    """transformers' layer, of the same parameters, with :func:`selective_scan` where no state is kept."""

    def forward(self, hidden_states: Float[Tensor, "B L D"], *others: Any, **named: Any) -> Float[Tensor, "B L D"]:
        if not _chunked(hidden_states, *others, *named.values()):
            return super().forward(hidden_states, *others, **named)
        parts = _selection(mamba(self).select, hidden_states)
        values = parts.values[..., 0]
        A = -self.A_log.float().exp()
        with torch.autocast(HOST, enabled=False):
            scanned = selective_scan(values, parts.step, A, parts.B[:, :, 0], parts.C[:, :, 0]) + values * self.D
        gate = F.linear(hidden_states, *_rows(self.in_proj, slice(self.intermediate_size, None)))
        return self.out_proj((scanned * self.act(gate)).to(hidden_states.dtype))


class ChunkedMamba2Mixer(Mamba2Mixer):
    """transformers' layer, of the same parameters, with :func:`head_scan` where no state is kept."""

    def forward(self, hidden_states: Float[Tensor, "B L D"], *others: Any, **named: Any) -> Float[Tensor, "B L D"]:
        if not _chunked(hidden_states, *others, *named.values()):
            return super().forward(hidden_states, *others, **named)
        parts = _selection(mamba2(self).select, hidden_states)
        with torch.autocast(HOST, enabled=False):
            scanned = head_scan(parts.values, parts.step, -self.A_log.float().exp(), parts.B, parts.C)
        scanned = scanned + parts.values * self.D[:, None]
        gate = F.linear(hidden_states, *_rows(self.in_proj, slice(self.intermediate_size)))
        return self.out_proj(self.norm(scanned.flatten(2), gate).to(hidden_states.dtype))


def use_chunked_scan(model: nn.Module) -> nn.Module:
    """Let transformers' Mamba and Mamba-2 layers of a model scan in chunks on a CPU, in place.

    Parameters, names and values stay; see benchmarks/results/scan_speed.md for what it is worth.
    """
    for module in model.modules():
        for host, chunked in ((MambaMixer, ChunkedMambaMixer), (Mamba2Mixer, ChunkedMamba2Mixer)):
            if type(module) is host:
                module.__class__ = chunked
    return model


def _chunked(hidden_states: Tensor, *others: Any) -> bool:
    """Whether there is no cache, mask or other argument, whatever this version of transformers calls it."""
    return hidden_states.device.type == HOST and all(other is None for other in others)


def _selection(select: Any, hidden_states: Tensor) -> Selection:
    return Selection(*(part.float() for part in select(hidden_states)))


def _rows(linear: nn.Linear, rows: slice) -> tuple[Tensor, Tensor | None]:
    return linear.weight[rows], None if linear.bias is None else linear.bias[rows]
