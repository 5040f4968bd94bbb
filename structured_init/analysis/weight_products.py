"""The products that attention is made of, W_q W_kᵀ and W_v W_o: the first figures of the papers.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: the logits are x W_q W_kᵀ xᵀ, and a head
adds A x W_v W_o to the residual stream. Under rotary positions the logits at distance δ are x W_q R(δ) W_kᵀ xᵀ, so
W_q W_kᵀ is what a token gives itself: how a head looks at other distances is seen in attention maps alone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.hosts.attention_site import AttentionSite
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import wrapped_child


@runtime_checkable
class HasProjections(Protocol):
    """What has the four matrices of an attention layer, such as an ``AttentionSite``."""

    query: Float[Tensor, "heads embed_dim head_dim"]
    key: Float[Tensor, "kv_heads embed_dim head_dim"]
    value: Float[Tensor, "kv_heads embed_dim value_dim"]
    output: Float[Tensor, "heads value_dim out_dim"]


class WeightProducts(NamedTuple):
    """The products of one attention layer.

    Attributes:
        query_key: W_q W_kᵀ of every head (H, D, D).
        value_output: Σ_h W_v W_o, what the layer writes where every head looks at the same token (D, D).
    """

    query_key: Float[Tensor, "heads embed_dim embed_dim"]
    value_output: Float[Tensor, "embed_dim out_dim"]

    def summary(self) -> dict[str, float | list[float]]:
        """Return mean diagonal and standard deviation off the diagonal: (αZ ± βI) shows as (±β, α/√D)."""
        return {
            "query_key_diagonal": _diagonal_mean(self.query_key).tolist(),
            "query_key_off_diagonal_std": _off_diagonal_std(self.query_key).tolist(),
            "value_output_diagonal": _diagonal_mean(self.value_output).item(),
            "value_output_off_diagonal_std": _off_diagonal_std(self.value_output).item(),
        }


def weight_products(site: HasProjections) -> WeightProducts:
    """Return the weight products of an attention site, in float32 on the CPU.

    Under rotary positions, as in Llama, W_q W_kᵀ tells of attention at distance 0 alone.

    Args:
        site: an ``AttentionSite``, or anything with ``query`` (H, D, k), ``key`` (Hkv, D, k), ``value`` (Hkv, D, kv)
            and ``output`` (H, kv, D). With Hkv < H, a key–value head serves H / Hkv neighbouring query heads.

    Raises:
        StructuredInitError: it is a whole model, or has adapters of peft that are neither merged nor disabled.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import attention_sites
        >>> from structured_init.analysis import weight_products
        >>> products = weight_products(attention_sites(model)[0])
        >>> tuple(products.query_key.shape), tuple(products.value_output.shape)
        ((3, 192, 192), (192, 192))
    """
    if not hasattr(site, "query"):
        raise StructuredInitError(
            f"weight_products takes a site, as attention_sites(model) gives them, got {type(site).__name__}"
        )
    for name, layer in site.module.named_modules() if isinstance(site, AttentionSite) else ():
        if wrapped_child(layer) == "base_layer" and not (layer.merged or layer.disable_adapters):  # of peft
            raise StructuredInitError(f"'{site.name}.{name}' has adapters: merge them first (merge_and_unload)")
    query, output = site.query.double(), site.output.double()
    repeats = query.shape[0] // site.key.shape[0]
    key = site.key.double().repeat_interleave(repeats, dim=0)
    value = site.value.double().repeat_interleave(repeats, dim=0)
    return WeightProducts(
        query_key=torch.einsum("hdk,hek->hde", query, key).float(),
        value_output=torch.einsum("hdk,hke->de", value, output).float(),
    )


def _diagonal_mean(product: Tensor) -> Tensor:
    return product.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def _off_diagonal_std(product: Tensor) -> Tensor:
    rows, columns = product.shape[-2:]
    off_diagonal = ~torch.eye(rows, columns, dtype=torch.bool, device=product.device)
    return product[..., off_diagonal].std(dim=-1)
