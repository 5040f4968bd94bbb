"""The pictures: attention, texts with their tokens, weight products, depthwise filters, statistics over depth.

Every function takes tensors or numbers and returns a ``matplotlib.figure.Figure``; none touches pyplot, a global
setting or a display. matplotlib is imported when the first picture is drawn.
"""

from .attention import circuit_figure, depth_figure, map_figure, profile_figure, token_figure, zoom_figure
from .audit import audit_figure
from .mosaic import save_figure
from .weights import covariance_figure, filter_figure, half_life_figure, product_figure, variance_figure

__all__ = [
    "audit_figure",
    "circuit_figure",
    "covariance_figure",
    "depth_figure",
    "filter_figure",
    "half_life_figure",
    "map_figure",
    "product_figure",
    "profile_figure",
    "save_figure",
    "token_figure",
    "variance_figure",
    "zoom_figure",
]
