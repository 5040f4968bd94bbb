"""Comparing initializations: what is compared, trained, measured and shown."""
