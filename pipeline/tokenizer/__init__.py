"""Turns text into token ids by WordPiece or BPE, exactly like the `tokenizers` library; reads and writes tokenizer
files."""

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
