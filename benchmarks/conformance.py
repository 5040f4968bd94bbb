"""In how many models of other libraries is attention found, checked, initialized and captured?

    python -m benchmarks.conformance --output benchmarks/results
    python -m benchmarks.conformance --libraries timm --only swin   # a look at a few

One model per architecture of the installed libraries, built small from a random configuration, each in a process of
its own.
"""
