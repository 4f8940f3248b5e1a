"""TODO trainer/engine."""
