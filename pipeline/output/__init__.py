"""TODO pipeline/output."""
