"""Callbacks for Lightning: initialize a model, capture its attention and its filters, resume exactly."""

from .alpha_schedule import AlphaScheduleCallback
from .attention_map import AttentionMapCallback
from .before_after import FilterCallback, RepresentationCallback, WeightProductsCallback
from .elapsed_time import ElapsedTime
from .exact_resume import ExactResume
from .init import InitCallback

__all__ = [
    "AlphaScheduleCallback",
    "AttentionMapCallback",
    "ElapsedTime",
    "ExactResume",
    "FilterCallback",
    "InitCallback",
    "RepresentationCallback",
    "WeightProductsCallback",
]
