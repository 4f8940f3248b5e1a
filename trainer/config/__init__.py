"""TODO trainer/config."""
