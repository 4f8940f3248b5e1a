"""The training half of Cloze: sentence pairs to a pretrained BERT, with Ray Train and DeepSpeed."""

import pipeline as pipeline  # imported first, because it says which package is missing
