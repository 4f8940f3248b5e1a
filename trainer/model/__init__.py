"""BERT over unpadded tokens: sequences lie one after another in [T, width], and only attention needs their offsets.

Build a model with BertForPretraining(config.model, vocabulary_size=..., seed=...).
"""

from trainer.model.batch import Batch, to_batch
from trainer.model.bert import VOCABULARY_MULTIPLE, BertForPretraining, PretrainingOutput, initialize_weights
from trainer.model.cross_entropy import GPU_CHUNK_BYTES
from trainer.model.embeddings import NUM_SEGMENTS
from trainer.model.encoder import FEED_FORWARD_FACTOR
from trainer.model.layers import LAYER_NORM_EPSILON
