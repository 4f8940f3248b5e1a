"""TODO trainer/data."""
