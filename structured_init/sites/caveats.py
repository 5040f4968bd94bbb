"""What a host does to an initialization: one wording for the report, whichever initializer writes."""

from __future__ import annotations

from structured_init.layout import AttentionLayout, overlap

HIDDEN_BRANCH = 1e-3  # a LayerScale below this leaves nothing of the branch to see


def query_key_caveats(layout: AttentionLayout) -> list[str]:
    """Say what the host does to a query–key initialization."""
    caveats = []
    if layout.query_key_norm:
        caveats.append("the host normalizes queries and keys: the strength of the query–key part has no effect")
    if layout.rope:
        caveats.append("RoPE turns queries and keys: the query–key product holds between tokens at one position only")
    if (group := layout.query.heads // layout.key.heads) > 1:
        caveats.append(f"{group} query heads share a key: their products differ only in the rows of that key's span")
    if layout.mixes_heads:
        caveats.append("the host mixes its heads: no query–key product is a map of its own")
    if overlap(layout.key, layout.value):
        caveats.append("keys and values are one parameter: what is written as the keys changes the values")
    if layout.others:
        caveats.append(f"the host adds or subtracts the maps of other queries and keys, left alone: {layout.others}")
    return caveats


def value_output_caveats(
    layout: AttentionLayout, branch_scale: float | None, residual_scale: str = "replace"
) -> list[str]:
    """Say what the host does to a value–output initialization, which has replaced or kept its scale for depth."""
    caveats = []
    if layout.value_norm:
        caveats.append("the host normalizes between values and output: the strength of the values has no effect")
    if layout.between:
        caveats.append(f"between values and output the host has {layout.between}: their product is no map of its own")
    if (group := layout.output.heads // layout.value.heads) > 1:
        rank = layout.value.heads * layout.value.head_dim
        caveats.append(f"{group} heads share a value: the rank of the value–output product is at most {rank}")
    if layout.residual_depth:
        caveats.append(
            f"the host draws the output projection 1/√{layout.residual_depth} smaller, for its depth: "
            + ("replaced, scale included" if residual_scale == "replace" else "that scale is kept")
        )
    if branch_scale is not None and branch_scale < HIDDEN_BRANCH:
        caveats.append(f"LayerScale {branch_scale:.0e} hides the branch: its initialization barely reaches the output")
    return caveats
