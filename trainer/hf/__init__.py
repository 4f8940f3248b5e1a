"""transformers' formats: names of weights, reading of model folders, and comparison of vocabularies."""

from trainer.hf import pretrained
from trainer.hf.pretrained import (
    CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    WEIGHTS_FILE,
    fit_model,
    initialize_from,
    load_model,
    read_longest,
    read_model,
    take_shape,
)
from trainer.hf.vocabulary_check import check_same_vocabulary, read_vocabulary
from trainer.hf.weight_names import MODEL_TYPES, architecture_of, to_transformers, transformers_config
