"""TODO pipeline/shuffle."""
