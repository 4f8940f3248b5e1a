"""Downloads the sample corpus and the Wikipedia dumps that a config names."""
