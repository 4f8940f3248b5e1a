"""TODO pipeline/cleaning."""
