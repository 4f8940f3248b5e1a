"""TODO pipeline/engines."""
