"""TODO pipeline/build."""
