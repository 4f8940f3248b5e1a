"""Text to tokenized sentence pairs: the data half of Cloze (Beam)."""
