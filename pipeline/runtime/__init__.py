"""TODO pipeline/runtime."""
