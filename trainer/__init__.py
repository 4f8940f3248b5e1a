"""Sentence pairs to a pretrained BERT: the training half of Cloze (Ray Train and DeepSpeed)."""

import pipeline as pipeline  # first of all: it says which package is missing
