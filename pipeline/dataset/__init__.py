"""TODO pipeline/dataset."""
