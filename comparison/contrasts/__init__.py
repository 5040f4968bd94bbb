"""What several runs say together: differences between arms, with their intervals and verdicts."""
