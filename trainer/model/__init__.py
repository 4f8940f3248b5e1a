"""BERT over unpadded tokens: per-token layers see [T, width], attention gets the sequences' offsets.

One way in: BertForPretraining(config.model, vocabulary_size=..., seed=...).
"""

from trainer.model.batch import Batch, to_batch
from trainer.model.bert import VOCABULARY_MULTIPLE, BertForPretraining, PretrainingOutput, initialize_weights
from trainer.model.cross_entropy import GPU_CHUNK_BYTES
from trainer.model.embeddings import NUM_SEGMENTS
from trainer.model.encoder import FEED_FORWARD_FACTOR
from trainer.model.layers import LAYER_NORM_EPSILON

__all__ = [
    "FEED_FORWARD_FACTOR",
    "GPU_CHUNK_BYTES",
    "LAYER_NORM_EPSILON",
    "NUM_SEGMENTS",
    "VOCABULARY_MULTIPLE",
    "Batch",
    "BertForPretraining",
    "PretrainingOutput",
    "initialize_weights",
    "to_batch",
]
