"""Initializations for sequences: the circuits that trained language models share."""

from structured_init.sequence.induction import Induction
from structured_init.sequence.previous_token import PreviousToken

__all__ = ["Induction", "PreviousToken"]
