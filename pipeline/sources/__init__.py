"""TODO pipeline/sources."""
