"""Comparing initializations: what is compared, trained, measured and shown."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"verdicts.referee": ["judge"]})
