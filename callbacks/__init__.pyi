"""Callbacks for Lightning: initialize a model, capture its attention and its filters, resume exactly."""

from .alpha_schedule import AlphaScheduleCallback as AlphaScheduleCallback
from .attention_map import AttentionMapCallback as AttentionMapCallback
from .before_after import FilterCallback as FilterCallback
from .before_after import RepresentationCallback as RepresentationCallback
from .before_after import WeightProductsCallback as WeightProductsCallback
from .elapsed_time import ElapsedTime as ElapsedTime
from .exact_resume import ExactResume as ExactResume
from .init import InitCallback as InitCallback
