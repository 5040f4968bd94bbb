"""What people build in so that a network sees neighbouring tokens before attention does.

They change the network, where an initialization changes its first weights alone: the mark against which
``PreviousToken`` and ``Impulse`` are measured. Two work at the token embedding (``smear``, ``bigram_hash``), one at the
values (``value_embeddings``), one at four places of every block (``canon``), the others before attention. In a block of
several documents all but ``value_embeddings`` look across the border, as their sources do.

Letters: B batch, T tokens, D width, V vocabulary, Hkv key–value heads, k their width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structured_init.errors import StructuredInitError, nearest
from structured_init.hosts import AttentionSite, Projection, attention_sites
from structured_init.hosts.layout import outputs_axis
from structured_init.hosts.mlp import mlps

NAME = "token_mixing"  # of the module inside each layer that is changed


class TokenShift(nn.Module):
    """The first half of the coordinates comes from the token before; zeros before the first. No parameters.

    Source: RWKV's time shift, BlinkDL/RWKV-LM, ``RWKV-v1``; Peng et al., 2305.13048, mixes with learned shares.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.half = width // 2

    def forward(self, tokens: Tensor) -> Tensor:
        before = nn.functional.pad(tokens[:, :-1, : self.half], (0, 0, 1, 0))
        return torch.cat([before, tokens[..., self.half :]], dim=-1)


class ShortConvolution(nn.Module):
    """x + conv(x), depthwise and causal over the last ``kernel_size`` tokens, initialized as PyTorch does.

    Source: the kernel of 4 is that of Mamba, 2312.00752. Without a bias and before attention it is the layer Canon-A of
    Allen-Zhu, 2512.17351 (facebookresearch/PhysicsLM4, ``huggingface/canon_helper.py``: ``create_canon``).
    """

    def __init__(self, width: int, kernel_size: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel_size, groups=width, padding=kernel_size - 1, bias=bias)

    def forward(self, tokens: Tensor, read: Tensor | None = None) -> Tensor:
        """Return tokens (B, T, D) of the same shape; what made them does not matter."""
        return tokens + self.convolution(tokens.mT)[..., : tokens.shape[1]].mT


class DepthwiseConvolution(nn.Module):
    """x + conv(x), depthwise 3×3 over a grid of patches with zeros around it, initialized as PyTorch does.

    Tokens before the grid (class token, registers) stay as they are.

    Source: with a skip, the positional encoding generator of Chu et al., 2102.10882, which stands behind the first
    block alone.
    """

    def __init__(self, width: int, grid: tuple[int, int], prefix_tokens: int = 0) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = grid, prefix_tokens
        self.convolution = nn.Conv2d(width, width, 3, groups=width, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        prefix, patches = tokens[:, : self.prefix_tokens], tokens[:, self.prefix_tokens :]
        mixed = self.convolution(patches.mT.unflatten(-1, self.grid)).flatten(-2).mT
        return torch.cat([prefix, patches + mixed], dim=1)


class Smear(nn.Module):
    """x_t + λ σ(w · x̂_t) x_{t−1}: a gated share of the embedding before; λ starts at 0, so nothing at first.

    The gate reads the first 24 coordinates of the token, divided by its root mean square: the sources normalize
    embeddings, most networks here do not.

    Source: karpathy/nanochat, ``nanochat/gpt.py`` (``smear_gate``, ``smear_lambda``: w uniform in [0, 0.02]); first in
    KellerJordan/modded-nanogpt, #130, with 12 coordinates.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(min(24, width)).uniform_(0, 0.02))
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: Tensor, ids: Tensor) -> Tensor:
        """Return tokens (B, T, D) of the same shape; their numbers (B, T) do not matter."""
        read = F.rms_norm(tokens, tokens.shape[-1:])[..., : len(self.gate)]
        before = F.pad(tokens[:, :-1], (0, 0, 1, 0))
        return tokens + self.share * torch.sigmoid(read @ self.gate)[..., None] * before


class BigramHash(nn.Module):
    """x_t plus a learned row for the pair (token before, token), by its hash, in a table of 5 V rows; zeros at first.

    Source: KellerJordan/modded-nanogpt, #201, ``train_gpt.py``: ``get_bigram_hash``. There 0.1 of it is added before
    each of 11 layers, and it learns 75 times as fast as the rest; here it is added once, whole, at the common rate.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(5 * vocabulary, width)
        nn.init.zeros_(self.table.weight)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the row of each pair for token numbers (B, T); the last row stands for the first token, alone."""
        last = self.table.num_embeddings - 1
        pairs = torch.bitwise_xor(36313 * ids[:, 1:], 27191 * ids[:, :-1]) % last
        return F.pad(pairs, (1, 0), value=last)

    def forward(self, tokens: Tensor, ids: Tensor) -> Tensor:
        return tokens + self.table(self.rows(ids))


class TokenNumbers(nn.Module):
    """Keeps the token numbers (B, T) of the present call, for the layers that look them up again."""

    def forward(self, tokens: Tensor, ids: Tensor) -> Tensor:
        self.ids = ids
        return tokens


class ValueEmbedding(nn.Module):
    """v + 3 σ(w · x) e: the values of each head gain a learned row of the token itself, by a gate of its own.

    The gate of a head reads the first 12 coordinates of what attention reads. Rows are uniform with standard deviation
    D^(−1/2), as nanochat's value projections are, so the network differs from the plain one at once.

    Source: karpathy/nanochat, ``nanochat/gpt.py`` (``value_embeds``, ``ve_gate``: w uniform in [0, 0.02]);
    KellerJordan/modded-nanogpt; value residuals are those of 2410.17897.
    """

    def __init__(self, numbers: TokenNumbers, vocabulary: int, width: int, values: Projection) -> None:
        super().__init__()
        self.numbers, self.begin, self.heads = numbers, values.start, values.heads
        self.table = nn.Embedding(vocabulary, values.heads * values.head_dim)
        nn.init.uniform_(self.table.weight, -((3 / width) ** 0.5), (3 / width) ** 0.5)
        self.gate = nn.Parameter(torch.empty(values.heads, min(12, width)).uniform_(0, 0.02))

    def no_weight_decay(self) -> set[str]:
        """Name the gate, which modded-nanogpt gives to Adam."""
        return {"gate"}

    def forward(self, projected: Tensor, tokens: Tensor) -> Tensor:
        """Return what the projection made (B, T, …), its values changed, of the tokens (B, T, D) that it read."""
        gate = 3 * torch.sigmoid(tokens[..., : self.gate.shape[1]] @ self.gate.mT)  # (B, T, Hkv)
        rows = self.table(self.numbers.ids).unflatten(-1, (self.heads, -1))  # (B, T, Hkv, k)
        added = (gate[..., None] * rows).flatten(-2)
        behind = projected.shape[-1] - self.begin - added.shape[-1]
        return projected + F.pad(added, (self.begin, behind))


SEQUENCES = {"token_shift": TokenShift, "short_convolution": ShortConvolution}
GRIDS = {"depthwise_convolution": DepthwiseConvolution}
EMBEDDINGS = ("smear", "bigram_hash")
CAUSAL = (*SEQUENCES, *EMBEDDINGS, "value_embeddings", "canon")


def mix_tokens(network: nn.Module, kind: str) -> None:
    """Let a network mix each token with its neighbours, in place.

    What is drawn comes from a seed of its own, made from the global one, and the global random state stays as it is:
    the network and all that is drawn later are those of a run without a mixing.

    Args:
        network: each layer that is changed gets a module ``token_mixing`` and a hook that calls it.
        kind: for causal networks ``token_shift`` or ``short_convolution`` before each attention layer, ``smear`` or
            ``bigram_hash`` at the token embedding, ``value_embeddings`` in every other attention layer, the last one
            among them, ``canon`` at four places of each block; ``depthwise_convolution`` before each attention layer
            of a vision transformer.

    Raises:
        StructuredInitError: there is no such kind; the network lacks what it works on (attention or an MLP that is
            known, an embedding of token numbers); or a kind for sequences on a grid of patches, or the other way round.
    """
    if kind not in {*CAUSAL, *GRIDS}:
        raise StructuredInitError(f"there is no token_mixing '{kind}': {nearest(kind, [*CAUSAL, *GRIDS])}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((torch.initial_seed() + 1_000_003) % 2**63)
        sites = attention_sites(network)
        for site in sites:
            if (kind in GRIDS) != (site.grid is not None):
                tokens, fitting = ("a sequence", CAUSAL) if site.grid is None else ("a grid of patches", GRIDS)
                said = f"'{site.name}' sees {tokens}, which takes {' or '.join(fitting)}"
                raise StructuredInitError(f"token_mixing '{kind}': {said}")
        if kind in EMBEDDINGS:
            embedding = _token_embedding(network, kind)
            mixing = Smear(embedding.embedding_dim) if kind == "smear" else BigramHash(*embedding.weight.shape)
            return _after(embedding, mixing)
        if not sites:
            raise StructuredInitError(f"token_mixing: {type(network).__name__} has no attention layer that is known")
        if kind == "value_embeddings":
            return _embed_values(network, sites)
        if kind == "canon":
            return _canon(network, sites)
        for site in sites:
            grid = (site.grid, site.prefix_tokens) if kind in GRIDS else ()
            _before(site.module, {**SEQUENCES, **GRIDS}[kind](site.embed_dim, *grid))


def _token_embedding(network: nn.Module, kind: str) -> nn.Embedding:
    """Return the embedding of token numbers, as networks of transformers tell it."""
    embedding = getattr(network, "get_input_embeddings", lambda: None)()
    if not isinstance(embedding, nn.Embedding):
        said = f"{type(network).__name__} tells no embedding of token numbers by get_input_embeddings()"
        raise StructuredInitError(f"token_mixing '{kind}': {said}")
    return embedding


def _embed_values(network: nn.Module, sites: list[AttentionSite]) -> None:
    """Add rows of the tokens to the values of every other attention layer, the last one among them."""
    embedding, numbers = _token_embedding(network, "value_embeddings"), TokenNumbers()
    chosen = [(site.embed_dim, site.layout.value) for site in sites[(len(sites) - 1) % 2 :: 2]]
    layers = _layers(network, [values for _, values in chosen], "value_embeddings")
    for (width, values), layer in zip(chosen, layers, strict=True):
        _after(layer, ValueEmbedding(numbers, embedding.num_embeddings, width, values))
    _after(embedding, numbers)


def _canon(network: nn.Module, sites: list[AttentionSite]) -> None:
    """Put x + conv(x) before attention (A), behind its projections (B), before the MLP (C) and behind its first (D).

    Source: Allen-Zhu, 2512.17351; facebookresearch/PhysicsLM4, ``huggingface/modeling_llama_canon.py`` (``canonA`` to
    ``canonD``: kernel of 4, no bias, no activation; D before the activation of the MLP).
    """
    widths = {site.embed_dim for site in sites}
    every = mlps(network, [each for site in sites for each in site.layout.parameters()])
    found = [mlp for mlp in every.values() if mlp.width in widths]
    if not found:
        raise StructuredInitError(f"token_mixing 'canon': {type(network).__name__} has no MLP that is known")
    layers = _layers(network, [getattr(s.layout, part) for s in sites for part in ("query", "key", "value")], "canon")
    layers += [_owner(network, weight, "canon") for mlp in found for weight in mlp.there]
    for layer in dict.fromkeys(layers):  # a fused layer once
        _after(layer, ShortConvolution(layer.weight.shape[outputs_axis(layer)], bias=False))
    for read in (*sites, *found):
        _before(
            read.module, ShortConvolution(read.embed_dim if isinstance(read, AttentionSite) else read.width, bias=False)
        )


def _layers(network: nn.Module, blocks: Iterable[Any], kind: str) -> list[nn.Module]:
    """Return the layers whose outputs are these projections."""
    together = [isinstance(block, Projection) and block.step in (None, block.head_dim) for block in blocks]
    return [
        _owner(network, block.weight if whole else None, kind) for block, whole in zip(blocks, together, strict=True)
    ]


def _owner(network: nn.Module, weight: nn.Parameter | None, kind: str) -> nn.Module:
    """Return the linear layer that holds a weight."""
    for module in network.modules():
        if weight is not None and module._parameters.get("weight") is weight and outputs_axis(module) is not None:
            return module
    raise StructuredInitError(
        f"token_mixing '{kind}': {type(network).__name__} keeps its weights in no layer of their own"
    )


def _before(module: nn.Module, mixing: nn.Module) -> None:
    """Let a module read its tokens through a mixing."""
    module.add_module(NAME, mixing.to(next(module.parameters())))
    module.register_forward_pre_hook(_read, with_kwargs=True)


def _after(module: nn.Module, mixing: nn.Module) -> None:
    """Let a mixing change what a module puts out."""
    module.add_module(NAME, mixing.to(next(module.parameters())))
    module.register_forward_hook(_put_out)


def _read(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Replace the tokens that a layer is called with, its first argument or the one called ``hidden_states``."""
    mixing = module.get_submodule(NAME)  # of this module: a copy has one of its own
    if args:
        return (mixing(args[0]), *args[1:]), dict(kwargs)
    return args, {**kwargs, "hidden_states": mixing(kwargs["hidden_states"])}


def _put_out(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    """Replace what a layer puts out."""
    return module.get_submodule(NAME)(output, args[0])
