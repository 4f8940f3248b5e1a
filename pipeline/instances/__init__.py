"""TODO pipeline/instances."""
