"""The pictures: audits, attention, texts with their tokens, weight products, depthwise filters, statistics over depth.

Every function takes tensors or numbers and returns a ``matplotlib.figure.Figure``; none touches pyplot, a global
setting or a display. matplotlib is imported when the first picture is drawn.
"""

import lazy_loader

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
