"""Text to token ids, by WordPiece or BPE exactly as in `tokenizers`, and the files of a tokenizer."""

from pipeline.tokenizer.files import (
    BERT_SPECIAL,
    END_OF_WORD,
    PIECE_PREFIX,
    build_wordpiece,
    describe_text,
    finish,
    read_tokenizer,
    word_rules,
)
from pipeline.tokenizer.tokenizer import RARE_LETTERS, Ids, SpecialIds, TokenizedDocument, WordTokenizer
