"""Training of a vocabulary: words counted over the sources, subwords trained, the file written."""

from pipeline.vocabulary.train import (
    check_name,
    count_words,
    given_vocabulary,
    train_tokenizer,
    trained_vocabulary,
    vocabulary_name,
)
