"""Trains a vocabulary: counts words over the sources, trains subwords, writes the file."""

from pipeline.vocabulary.train import (
    check_name,
    count_words,
    given_vocabulary,
    train_tokenizer,
    trained_vocabulary,
    vocabulary_name,
)
