"""TODO pipeline/tokenizer."""
