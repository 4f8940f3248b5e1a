"""TODO pipeline/estimate."""
