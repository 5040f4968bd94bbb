"""Speed and quality, one command each; results are committed under ``benchmarks/results``."""
