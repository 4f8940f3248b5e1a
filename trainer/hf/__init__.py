"""TODO trainer/hf."""
