"""Robustness to small changes of an image, in the L2 norm: what is certified, and what attacks find."""

from __future__ import annotations

from lightning_modules.tasks.certified.attacks import l2_pgd
from lightning_modules.tasks.certified.certificate import certified, margins

__all__ = ["certified", "l2_pgd", "margins"]
