"""What a network's attention, representations and weights look like: tensors in, numbers out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from structured_init.analysis.audit import Audit, audit
from structured_init.analysis.blocks import repeated_blocks
from structured_init.analysis.capture import NoAttentionError, capture_attention, register_capture
from structured_init.analysis.channel_mixing import channels_needed, filter_basis, mixing_residual, numerical_rank
from structured_init.analysis.cka import cka, cka_matrix, gram_matrices, gram_matrix, hsic1, rbf
from structured_init.analysis.filters import (
    FILTER_STATISTICS,
    block_grid,
    depthwise_filters,
    filter_change,
    filter_statistics,
    variance_map,
)
from structured_init.analysis.heads import (
    HEAD_SCORES,
    induction_score,
    prefix_matches,
    previous_token_score,
    repeated_tokens,
)
from structured_init.analysis.implicit_attention import implicit_attention, implicit_maps, scan_matrix
from structured_init.analysis.lipschitz import LipschitzReport, lipschitz_bound, lipschitz_report, register_lipschitz
from structured_init.analysis.statistics import (
    argmax_accuracy,
    best_offset,
    diagonal_mass,
    diagonality,
    effective_rank,
    entropy,
    far_mass,
    grid_distances,
    impulse_mass,
    impulse_mass_change,
    mean_distance,
    offset_profile,
    patch_maps,
    profile_energy,
    structure_left,
    uniform_far_mass,
)
from structured_init.analysis.summary import STATISTICS, summarize, summarize_change, to_csv
from structured_init.analysis.weight_products import WeightProducts, weight_products
from structured_init.errors import with_extra
from structured_init.running import undisturbed

if TYPE_CHECKING:
    from structured_init.analysis.metrics import (
        CKA,
        ArgmaxAccuracy,
        AttentionEntropy,
        Diagonality,
        DiagonalMass,
        EffectiveRank,
        FarMass,
        ImpulseMass,
        InductionScore,
        MeanAttentionDistance,
        OffsetProfile,
        PreviousTokenScore,
        ProfileEnergy,
        StructureLeft,
    )
from structured_init.linalg import empirical_covariance

__all__ = [
    "CKA",
    "FILTER_STATISTICS",
    "HEAD_SCORES",
    "STATISTICS",
    "ArgmaxAccuracy",
    "AttentionEntropy",
    "Audit",
    "DiagonalMass",
    "Diagonality",
    "EffectiveRank",
    "FarMass",
    "ImpulseMass",
    "InductionScore",
    "LipschitzReport",
    "MeanAttentionDistance",
    "NoAttentionError",
    "OffsetProfile",
    "PreviousTokenScore",
    "ProfileEnergy",
    "StructureLeft",
    "WeightProducts",
    "argmax_accuracy",
    "audit",
    "best_offset",
    "block_grid",
    "capture_attention",
    "channels_needed",
    "cka",
    "cka_matrix",
    "depthwise_filters",
    "diagonal_mass",
    "diagonality",
    "effective_rank",
    "empirical_covariance",
    "entropy",
    "far_mass",
    "filter_basis",
    "filter_change",
    "filter_statistics",
    "gram_matrices",
    "gram_matrix",
    "grid_distances",
    "hsic1",
    "implicit_attention",
    "implicit_maps",
    "impulse_mass",
    "impulse_mass_change",
    "induction_score",
    "lipschitz_bound",
    "lipschitz_report",
    "mean_distance",
    "mixing_residual",
    "numerical_rank",
    "offset_profile",
    "patch_maps",
    "prefix_matches",
    "previous_token_score",
    "profile_energy",
    "rbf",
    "register_capture",
    "register_lipschitz",
    "repeated_blocks",
    "repeated_tokens",
    "scan_matrix",
    "structure_left",
    "summarize",
    "summarize_change",
    "to_csv",
    "undisturbed",
    "uniform_far_mass",
    "variance_map",
    "weight_products",
]


def _get(name: str) -> type:
    """Import the torchmetrics classes when one is asked for: torchmetrics takes seconds to import."""
    if name in __all__:  # all others are here already
        return getattr(importlib.import_module("structured_init.analysis.metrics"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


__getattr__ = with_extra("lightning", __name__, _get)
