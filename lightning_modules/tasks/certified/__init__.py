"""Robustness to small changes of an image, in the L2 norm: what is certified, what attacks find, and how far apart."""

from __future__ import annotations

from lightning_modules.tasks.certified.attacks import empirical_lipschitz, l2_pgd
from lightning_modules.tasks.certified.certificate import certified, margins

__all__ = ["certified", "empirical_lipschitz", "l2_pgd", "margins"]
