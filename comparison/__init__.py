"""Comparing initializations, from a command to a page.

``command`` → ``plan`` (``plan.json``) → ``train`` (a folder for each run) → ``contrasts`` (differences and their
verdicts) → ``say`` (the page). ``runs`` is the format on disk, through which they speak. ``verdicts`` serves ``judge``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"verdicts.referee": ["judge"]})
