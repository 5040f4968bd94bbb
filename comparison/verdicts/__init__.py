"""The rule of ``judge``, by which anybody's runs are kept or discarded, and what it remembers.

``compare`` has its verdicts from ``contrasts``.
"""
