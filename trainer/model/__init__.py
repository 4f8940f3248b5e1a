"""BERT over unpadded tokens: per-token layers see [T, width], attention gets the sequences' offsets.

One way in: BertForPretraining(config.model, vocabulary_size=..., seed=...).
"""

from trainer.model.bert import BertForPretraining, PretrainingOutput

__all__ = ["BertForPretraining", "PretrainingOutput"]
