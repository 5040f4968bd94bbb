"""Attention of any model, found by watching one forward pass and checked against it.

An example, an attention of three lines:

    >>> import torch
    >>> from torch import nn
    >>> class Attention(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
    ...
    ...     def forward(self, x):  # (batch, tokens, 8); two heads, 4 wide
    ...         query, key, value = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    ...         maps = (query @ key.mT / 2).softmax(-1)
    ...         return self.proj((maps @ value).transpose(1, 2).flatten(2))
    >>> model, tokens = Attention(), torch.randn(1, 5, 8)

``mode`` sees every operation of torch, and ``forward_pass`` notes those that matter as sources (``records``): a
``Linear`` where a parameter is multiplied, else a ``Product`` of two activations, or a ``Sum`` where one of both is
made of a product.

    >>> from structured_init.hosts.watching import origins, records
    >>> from structured_init.hosts.watching.forward_pass import watching
    >>> with torch.no_grad(), watching(model) as seen:
    ...     out = model(tokens)
    >>> kinds = (records.Linear, records.Product, records.Sum)
    >>> [(type(source).__name__, source.module) for source in seen.sources if isinstance(source, kinds)]
    [('Linear', 'qkv'), ('Product', ''), ('Sum', ''), ('Linear', 'proj')]

A **tag** goes with every tensor: for each of its numbers a code (``origins``) says from which source it came, and as
which of its channels. ``unflatten`` and ``permute`` only move numbers, so they are repeated on the codes; the path of
a tag takes note of softmax and other functions (``operations``). So queries tell which outputs of which map they are,
head by head, however the model cuts its heads, and what ``proj`` is given tells which head each of its inputs is:

    >>> [product] = seen.of(records.Product)
    >>> origins.place(product.columns).tolist()  # of its queries, by head: channels of qkv
    [[0, 1, 2, 3], [4, 5, 6, 7]]

What is added to tokens with a row for each, positions, is noted beside (``tables``).

A softmax between product and sum makes it attention (``assemble``): its linear maps are found by the codes (``heads``),
become a layout, and what that predicts is compared with what came out (``evidence``). All of it is ``discover``:

    >>> from structured_init import discover_attention
    >>> [found] = discover_attention(model, tokens)
    >>> found.layout.key
    Projection(heads=2, head_dim=4, axis=0, start=8, step=None)
    >>> found.evidence.error < 1e-5
    True
"""

from structured_init.hosts.watching.discover import discover_attention
from structured_init.hosts.watching.evidence import Evidence, FoundAttention

__all__ = ["Evidence", "FoundAttention", "discover_attention"]
