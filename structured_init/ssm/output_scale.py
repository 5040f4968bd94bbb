"""How large the output of a scan is on random tokens, and how it is kept from growing out of bounds.

Without decay a scan sums all tokens that it has seen. Where the host normalizes its output (Mamba-2) that does not
show; where it does not (Mamba-1) the layer's output, and with it the residual stream, grows with the length.

Letters: L tokens, D embed_dim, H heads, P head_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from structured_init.sites.state_space import Selection, StateSpaceSite
from structured_init.ssm.head_scan import head_scan
from structured_init.ssm.scan import selective_scan

TOKENS, LAST = 256, 16  # how many random tokens are read, and over how many of the last the output is measured
INPUTS = 8.0  # how many times its input the output may be
HALF = 100.0  # root mean square at token 256 at which nothing overflows in float16, see bound


class ScanScale(NamedTuple):
    """Root mean squares over the channels of a scan.

    Attributes:
        input: of x, over all tokens.
        early: of the scan's output y, without the skip D, at tokens 49 to 64.
        late: the same at tokens 241 to 256.
    """

    input: float
    early: float
    late: float


def scan_scale(site: StateSpaceSite) -> ScanScale | None:
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
    return ScanScale(_rms(selection.values), _rms(output[64 - LAST : 64]), _rms(output[-LAST:]))


def bound(before: ScanScale, site: StateSpaceSite) -> float:
    """Return how large the output may be at token 256: eight times the input, or what it was before, the larger.

    At mamba-ssm's own scales the scan without decay reaches three to five times its input, and nothing is changed.
    Where the host normalizes the output, what float16 can hold: a scan without decay grows at most twelve times more
    until its half-life of 2,066 tokens ends that, and hardly an entry is larger than twenty times the root mean square;
    100 · 12 · 20 is less than the 65,504 at which float16 ends.
    """
    return max(HALF if site.layout.normalized else INPUTS * before.input, before.late)


def keep_within(site: StateSpaceSite, limit: float, *, attempts: int = 12) -> tuple[ScanScale | None, float]:
    """Make W_B and W_C smaller by one factor until the scan's output at token 256 is at a limit, to 5 % below.

    The output is taken to be a power of the factor. That of Mamba-1 is linear in either matrix, so the first attempt
    succeeds; that of Mamba-2, where SiLU stands in between, shows its exponent after one.

    Args:
        site: under the name of the writer.
        limit: for :attr:`ScanScale.late`.
        attempts: at most.

    Returns:
        The scale that is reached, and the factor on W_B and on W_C.
    """
    measured, factor, exponent = scan_scale(site), 1.0, 2.0
    if measured is None or measured.late <= limit:
        return measured, factor
    for _ in range(attempts):
        part = (limit / measured.late) ** (1 / exponent)
        site.B, site.C = part * site.B, part * site.C
        factor *= part
        before, measured = measured, scan_scale(site)
        if measured is None or 0.95 * limit <= measured.late <= 1.001 * limit:
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
