"""What a network's attention, representations and weights look like: tensors in, numbers out."""

import lazy_loader

from structured_init.util.errors import with_extra

# The list of names, and where each is, stands in __init__.pyi; a name is imported when it is first asked for.
_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_extra("lightning", __name__, _get)

# These are functions, and modules of the same name, which would take their place when they are imported.
from structured_init.analysis.cka import cka  # noqa: E402, F401
from structured_init.analysis.implicit_attention import implicit_attention  # noqa: E402, F401 - registers its captures
from structured_init.analysis.weight_products import weight_products  # noqa: E402, F401
