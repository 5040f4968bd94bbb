"""Initializers that write by training, before the training, what others write by formula."""

from structured_init.pretraining.procedural_warmup import ProceduralWarmup
from structured_init.pretraining.self_pretraining import SelfPretraining

__all__ = ["ProceduralWarmup", "SelfPretraining"]
