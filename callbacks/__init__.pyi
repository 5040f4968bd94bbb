"""Callbacks for Lightning: initialize a model, capture its attention and its filters, resume exactly."""

from .attention_map import AttentionMapCallback as AttentionMapCallback
from .elapsed_time import ElapsedTime as ElapsedTime
from .exact_resume import ExactResume as ExactResume
from .filters import FilterCallback as FilterCallback
from .init import InitCallback as InitCallback
from .representations import RepresentationCallback as RepresentationCallback
from .weight_products import WeightProductsCallback as WeightProductsCallback
