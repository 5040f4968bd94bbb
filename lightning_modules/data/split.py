"""Stratified parts of a dataset: every class keeps its share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from structured_init.errors import StructuredInitError


def stratified_counts(class_counts: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return how many of each class make ``fraction`` of all: proportional, rounded by the largest remainder.

    Args:
        class_counts: images per class, (C,).
        fraction: in [0, 1].

    Returns:
        Images to take per class, (C,); their sum is ``round(fraction * class_counts.sum())``.
    """
    exact = class_counts * fraction
    counts = np.floor(exact + 1e-9).astype(np.int64)
    missing = round(float(class_counts.sum() * fraction)) - int(counts.sum())
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: max(0, missing)]] += 1
    return counts


def stratified_parts(
    labels: NDArray[np.int64], fractions: Sequence[float], *, seed: int, class_names: Sequence[str], what: str
) -> list[NDArray[np.int64]]:
    """Draw disjoint stratified parts, the first one first; the last takes what is left where its share is not there.

    The draw is nested: with the same seed and the same parts before it, a smaller last part is contained in a larger.

    Args:
        labels: class of each image, (N,).
        fractions: share of all images for each part; 0 gives an empty part.
        seed: of the draw.
        class_names: for the error.
        what: the split's name, for the error.

    Returns:
        Sorted indices into ``labels``, one array per part.

    Raises:
        StructuredInitError: a class has too few images for every part that is not empty to have one.
    """
    rng = np.random.default_rng(seed)
    counts = np.bincount(labels, minlength=len(class_names))
    wanted = [stratified_counts(counts, fraction) for fraction in fractions]
    wanted[-1] = np.minimum(wanted[-1], counts - sum(wanted[:-1], start=np.zeros_like(counts)))
    parts: list[list[NDArray[np.int64]]] = [[] for _ in fractions]
    for label in np.flatnonzero(counts):
        members = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.cumsum([0, *(int(part[label]) for part in wanted)])
        for i, part in enumerate(parts):
            if fractions[i] > 0 and bounds[i + 1] <= bounds[i]:
                raise StructuredInitError(
                    f"class '{class_names[label]}' has {counts[label]} images in '{what}': too few for a part of "
                    f"{fractions[i]:g}, which would have none of them"
                )
            part.append(members[bounds[i] : bounds[i + 1]])
    return [np.sort(np.concatenate(part)) if part else np.empty(0, dtype=np.int64) for part in parts]
