"""Initializations for sequences: heads that look at a given number of tokens before."""

from structured_init.attention.sequence.previous_token import PreviousToken

__all__ = ["PreviousToken"]
