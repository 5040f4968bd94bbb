"""Callbacks for Lightning: start a model, capture its attention, resume exactly."""

from callbacks.attention_map import AttentionMapCallback
from callbacks.exact_resume import ExactResume
from callbacks.init import InitCallback

__all__ = ["AttentionMapCallback", "ExactResume", "InitCallback"]
