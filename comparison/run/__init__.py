"""From what the user asks for to trained runs."""
