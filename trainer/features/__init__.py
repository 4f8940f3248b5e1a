"""Vectors of texts by a pretrained model that is not trained further, and a tagger on such vectors.

`python -m trainer.features` writes vectors of texts; `python -m trainer.features.tagger` compares layers by a BiLSTM on
them, as table 7 of Devlin et al. 2019 does.
"""

from trainer.features.command import main
from trainer.features.config import FeaturesConfig, LayersConfig
from trainer.features.layers import combine, hidden_states, pool
