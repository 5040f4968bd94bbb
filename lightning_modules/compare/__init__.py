"""``structured-init compare``: paired runs of several starts, and what they say."""
