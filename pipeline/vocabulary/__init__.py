"""Trains a vocabulary: counts the words of all sources, trains subwords, and writes the vocabulary file."""

from pipeline.vocabulary.train import (
    check_name,
    count_words,
    given_vocabulary,
    train_tokenizer,
    trained_vocabulary,
    vocabulary_name,
)
