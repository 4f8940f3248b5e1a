"""Turns text into token ids by WordPiece or BPE, exactly like the `tokenizers` library; reads and writes tokenizer
files."""

from pipeline.tokenizer.chunks import Ids, is_within_word
from pipeline.tokenizer.dictionary import Dictionary, has_library, library_version
from pipeline.tokenizer.files import (
    BERT_SPECIAL,
    DOTTED_I,
    DOTTED_I_LANGUAGES,
    END_OF_WORD,
    MAX_WORD_CHARACTERS,
    PIECE_PREFIX,
    add_composition,
    build_wordpiece,
    describe_text,
    finish,
    longest_word,
    read_tokenizer,
    word_rules,
)
from pipeline.tokenizer.marks import LostMarks
from pipeline.tokenizer.tokenizer import (
    RARE_LETTERS,
    SpecialIds,
    TokenizedDocument,
    WordTokenizer,
)
