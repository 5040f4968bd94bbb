"""What a network's attention and weights look like: tensors in, numbers out."""

from __future__ import annotations

from structured_init.analysis.capture import NoAttentionError, capture_attention, register_capture
from structured_init.analysis.products import WeightProducts, weight_products
from structured_init.analysis.statistics import (
    argmax_accuracy,
    best_offset,
    diagonal_mass,
    diagonality,
    effective_rank,
    entropy,
    grid_distances,
    impulse_mass,
    mean_distance,
    offset_profile,
    patch_maps,
    profile_energy,
)
from structured_init.analysis.summary import STATISTICS, summarize, to_csv
from structured_init.analysis.undisturbed import undisturbed

__all__ = [
    "STATISTICS",
    "NoAttentionError",
    "WeightProducts",
    "argmax_accuracy",
    "best_offset",
    "capture_attention",
    "diagonal_mass",
    "diagonality",
    "effective_rank",
    "entropy",
    "grid_distances",
    "impulse_mass",
    "mean_distance",
    "offset_profile",
    "patch_maps",
    "profile_energy",
    "register_capture",
    "summarize",
    "to_csv",
    "undisturbed",
    "weight_products",
]
