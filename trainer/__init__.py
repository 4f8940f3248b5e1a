"""The training half of Cloze: sentence pairs to a pretrained BERT, with Ray Train and DeepSpeed."""

import os

import pipeline as pipeline  # imported first, because it says which package is missing

# OpenMP's threads wait for each other in a loop. If other programs need the cores too, that costs most of the time:
# fewer rounds of the loop, before the thread sleeps, made steps on a busy CPU twice as fast, and cost nothing on a
# quiet one (docs/LOG.md). torch reads this when it is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
