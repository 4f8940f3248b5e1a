"""TODO pipeline/wikitext."""
