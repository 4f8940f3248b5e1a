"""Sentence pairs to a pretrained BERT: the training half of Cloze (Ray Train and DeepSpeed)."""
