"""transformers' formats: names of weights, model folders, comparison of vocabularies, and guesses for [MASK]."""

from trainer.hf.folder_config import (
    CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    fit_model,
    read_longest,
    take_shape,
)
from trainer.hf.guesses import MASK, Guess, rank_guesses
from trainer.hf.pretrained import (
    WEIGHTS_FILE,
    compare_folder,
    initialize_from,
    load_model,
    read_model,
)
from trainer.hf.vocabulary_check import check_same_vocabulary, read_vocabulary
from trainer.hf.weight_names import MODEL_TYPES, architecture_of, to_transformers, transformers_config
