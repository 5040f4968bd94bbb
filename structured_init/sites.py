"""The name that :mod:`structured_init.hosts` had before."""

from structured_init.hosts import *  # noqa: F403
