"""The rule by which anybody's runs are kept or discarded, and what it remembers."""
