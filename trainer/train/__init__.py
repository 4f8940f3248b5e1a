"""TODO trainer/train."""
