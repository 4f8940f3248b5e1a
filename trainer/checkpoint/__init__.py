"""TODO trainer/checkpoint."""
