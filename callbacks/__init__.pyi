"""Callbacks for Lightning: initialize a model, capture its attention and its filters, resume exactly."""

from .alpha_schedule import AlphaScheduleCallback
from .attention_map import AttentionMapCallback
from .elapsed_time import ElapsedTime
from .exact_resume import ExactResume
from .filters import FilterCallback
from .init import InitCallback
from .representation import RepresentationCallback
from .weight_products import WeightProductsCallback

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
