"""Robustness to small changes of an image, in the L2 norm: what is certified, what attacks find, and how far apart."""

from __future__ import annotations

from lightning_modules.tasks.certified.certificate import certified, margins, output_distances
from lightning_modules.tasks.certified.certified_accuracy import CertifiedAccuracy
from lightning_modules.tasks.certified.empirical_lipschitz import empirical_lipschitz
from lightning_modules.tasks.certified.pgd import l2_pgd

__all__ = ["CertifiedAccuracy", "certified", "empirical_lipschitz", "l2_pgd", "margins", "output_distances"]
