"""Attention of any model, found by watching one forward pass and checked against it."""
