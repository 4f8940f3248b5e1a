"""TODO pipeline/dedup."""
