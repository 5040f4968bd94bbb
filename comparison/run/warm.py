"""Everything that a run imports, for a process from which those that train are forked: it computes nothing itself."""

import matplotlib.backends.backend_agg  # noqa: F401
import torch._dynamo  # noqa: F401  # the first step of an optimizer imports it

import comparison.run.run  # noqa: F401
import lightning_modules.data  # noqa: F401
