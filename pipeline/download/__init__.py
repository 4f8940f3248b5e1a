"""TODO pipeline/download."""
