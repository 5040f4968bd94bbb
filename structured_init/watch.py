"""The name that :mod:`structured_init.hosts.watching` had before."""

from structured_init.hosts.watching import *  # noqa: F403
