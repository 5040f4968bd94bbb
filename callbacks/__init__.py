"""Callbacks for Lightning: start a model, capture its attention, resume exactly."""

from callbacks.attention_map import AttentionMapCallback
from callbacks.elapsed_time import ElapsedTime
from callbacks.exact_resume import ExactResume
from callbacks.init import InitCallback
from callbacks.representation import RepresentationCallback

__all__ = ["AttentionMapCallback", "ElapsedTime", "ExactResume", "InitCallback", "RepresentationCallback"]
