"""What libraries say in every ordinary run, about themselves, and nobody who runs one can act on."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Each with its reason. A warning that a user can act on stays.
WARNINGS = (
    (r".*isinstance\(treespec, LeafSpec\)", FutureWarning),  # lightning 2.6 uses a name that torch has renamed
    (r".*ckpt_path=.last.\) is set, but there is no last", UserWarning),  # StartingAnew says it, and names a file
    (r"The '.*_dataloader' does not have many workers", UserWarning),  # ours decode ahead, in memory
)
LOGGED = {
    "lightning.pytorch.utilities.rank_zero": "💡 Tip",  # an advertisement
    "transformers": "The fast path is not available",  # kernels for a GPU; the extra ``mamba`` has them
}


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what is listed above, and put filters back afterwards."""
    filters = {name: _without(start) for name, start in LOGGED.items()}
    handlers = [(handler, name) for name in LOGGED for handler in _handlers(name)]
    loggers = {name: logging.getLogger(name) for name in LOGGED}
    for name, logger in loggers.items():
        logger.addFilter(filters[name])
    for handler, name in handlers:
        handler.addFilter(filters[name])
    with warnings.catch_warnings():
        for message, category in WARNINGS:
            warnings.filterwarnings("ignore", message, category)
        try:
            yield
        finally:
            for name, logger in loggers.items():
                logger.removeFilter(filters[name])
            for handler, name in handlers:
                handler.removeFilter(filters[name])


def _without(start: str) -> logging.Filter:
    """Return a filter that drops messages with this beginning."""

    class Without(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return not record.getMessage().startswith(start)

    return Without()


def _handlers(name: str) -> list[logging.Handler]:
    """Return the handlers of a logger: a logger's own filter does not see what its children say."""
    return list(logging.getLogger(name).handlers)
