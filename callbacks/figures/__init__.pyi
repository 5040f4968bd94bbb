"""The pictures: attention, texts with their tokens, weight products, depthwise filters, statistics over depth.

Every function takes tensors or numbers and returns a ``matplotlib.figure.Figure``; none touches pyplot, a global
setting or a display. matplotlib is imported when the first picture is drawn.
"""

from .attention import map_figure as map_figure
from .attention import profile_figure as profile_figure
from .attention import zoom_figure as zoom_figure
from .audit import audit_figure as audit_figure
from .depth import depth_figure as depth_figure
from .depth import half_life_figure as half_life_figure
from .style import save_figure as save_figure
from .text import token_figure as token_figure
from .weights import covariance_figure as covariance_figure
from .weights import filter_figure as filter_figure
from .weights import product_figure as product_figure
from .weights import variance_figure as variance_figure
