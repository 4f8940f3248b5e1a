"""TODO pipeline/vocabulary."""
