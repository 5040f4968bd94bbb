"""Callbacks for Lightning: start a model, capture its attention and its filters, resume exactly."""

from callbacks.alpha_schedule import AlphaScheduleCallback
from callbacks.attention_map import AttentionMapCallback
from callbacks.elapsed_time import ElapsedTime
from callbacks.exact_resume import ExactResume
from callbacks.filters import FilterCallback
from callbacks.init import InitCallback
from callbacks.representation import RepresentationCallback

__all__ = [
    "AlphaScheduleCallback",
    "AttentionMapCallback",
    "ElapsedTime",
    "ExactResume",
    "FilterCallback",
    "InitCallback",
    "RepresentationCallback",
]
