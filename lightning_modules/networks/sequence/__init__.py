"""Networks that read sequences: backbones of the recall tasks and their mixers."""
