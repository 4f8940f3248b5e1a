"""TODO pipeline/config."""
