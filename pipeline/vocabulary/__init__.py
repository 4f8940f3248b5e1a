"""Trains a vocabulary: counts the words of all sources, trains subwords, and writes the vocabulary file."""

from pipeline.vocabulary.letters import has_dotted_i, refuse_lost_letters, refuse_read_losses
from pipeline.vocabulary.train import (
    check_dictionary,
    check_name,
    count_words,
    given_vocabulary,
    open_vocabulary,
    train_tokenizer,
    trained_vocabulary,
    vocabulary_name,
)
