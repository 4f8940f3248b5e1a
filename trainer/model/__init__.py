"""BERT over unpadded tokens: sequences lie one after another in [T, width], and only attention needs their offsets.

Build a model with BertForPretraining(config.model, vocabulary_size=..., seed=...).
"""

from trainer.model.attention_gpu import FLASH_WIDTH, HEAD_WIDTHS
from trainer.model.batch import Batch, to_batch
from trainer.model.bert import VOCABULARY_MULTIPLE, BertForPretraining, PretrainingOutput, initialize_weights
from trainer.model.cross_entropy import GPU_CHUNK_BYTES
from trainer.model.embeddings import NUM_SEGMENTS
from trainer.model.encoder import Encoder
from trainer.model.layers import LAYER_NORM_EPSILON
