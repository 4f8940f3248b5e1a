"""TODO trainer/export."""
