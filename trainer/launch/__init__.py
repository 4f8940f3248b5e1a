"""TODO trainer/launch."""
